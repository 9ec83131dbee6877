package interlock_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

func ExampleToken() {
	granted, _ := interlock.NewToken(217_123_456_789_012, 0)
	passedOn, _ := granted.Next()
	fmt.Println(passedOn > granted, passedOn.Counter() == granted.Counter(), passedOn.Sub())
	// Output: true true 1
}

func ExampleKind() {
	for _, err := range []error{
		&interlock.StaleTokenError{Resource: "accounts/42", Seen: 8192, Got: 4096},
		&interlock.HeldError{Name: "accounts/42", Owner: "host-7:312"},
		errors.New("connection reset by peer"),
	} {
		fmt.Printf("%s: %v\n", interlock.Kind(err), err)
	}
	// Output:
	// definite: stale token for "accounts/42": got 4096, but 8192 has entered
	// retryable: "accounts/42" is held by host-7:312
	// uncertain: connection reset by peer
}

func ExampleGuarantees_Check() {
	promised := interlock.Guarantees{Driver: "redis", Order: interlock.FIFO, Blind: 10 * time.Second}
	err := promised.Check(interlock.Requirements{Order: interlock.FIFO, MaxBlind: time.Second})
	fmt.Println(err)
	// Output: redis does not meet what is required: a loss must be reported within 1s, 10s is promised (0 promises nothing)
}
