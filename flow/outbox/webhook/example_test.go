package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox/webhook"
)

func Example() {
	secret := []byte("a secret of at least 24 bytes")
	verifier := webhook.Verifier{Secrets: [][]byte{secret}}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, err := verifier.Read(r)
		if err != nil {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		// deduplicate by m.ID: once.Once(ctx, tx, m.ID, …)
		fmt.Printf("%s of %s: %s\n", m.ID, m.Key, m.Payload)
	}))
	defer receiver.Close()

	signer, err := webhook.NewSecret(secret)
	if err != nil {
		panic(err)
	}
	sink, err := webhook.New(receiver.URL, signer, nil)
	if err != nil {
		panic(err)
	}
	defer sink.Close()
	answers := sink.Publish(context.Background(), []driver.Message{{ID: "evt-1", Topic: "orders", Key: "order/42", Payload: []byte(`{}`)}})
	fmt.Println(answers)
	// Output:
	// evt-1 of order/42: {}
	// [<nil>]
}
