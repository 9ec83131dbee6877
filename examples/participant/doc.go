// Package participant contains a participant of transactions written in Python with the standard library
// alone, a client whose transactions a coordinator runs, and their tests. The participant passes the
// conformance kit, and every transaction of the client has one outcome. The package has no Go code.
//
//	python3 examples/participant/participant.py seats.db 8080
//	python3 examples/participant/client.py http://127.0.0.1:7461 http://127.0.0.1:8080/ http://127.0.0.1:8081/
package participant
