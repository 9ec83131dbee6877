// Package participant holds a participant of transactions that is written in Python,
// with nothing but its standard library, a client that has a coordinator run some, and
// the tests: the conformance kit passes the one, and what the other starts comes to one
// end. It has no code in Go, and promises no more than an example does: its business is
// that of the kit.
//
//	python3 examples/participant/participant.py seats.db 8080
//	python3 examples/participant/client.py http://127.0.0.1:7461 http://127.0.0.1:8080/ http://127.0.0.1:8081/
package participant
