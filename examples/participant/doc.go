// Package participant holds a participant of transactions that is written in Python,
// with nothing but its standard library, and the test that the conformance kit passes
// it. It has no code in Go, and promises no more than an example does: its business is
// that of the kit.
//
//	python3 examples/participant/participant.py seats.db 8080
package participant
