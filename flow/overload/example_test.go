package overload_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-dev/interlock/flow/overload"
)

// A server that limits its load, and a client that does not increase an overload.
func Example() {
	server, err := overload.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/report", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "a report") })
	s := httptest.NewServer(server.Handler(nil, mux))
	defer s.Close()

	reports, err := overload.New(nil) // one for each service that is called
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: reports.Transport(nil)}
	resp, err := client.Get(s.URL + "/report")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
	// Output: a report <nil>
}

// A call that is not HTTP.
func ExampleCall() {
	backend, err := overload.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	price, err := overload.Call(context.Background(), backend, func(ctx context.Context) (int, error) { return 42, nil })
	if _, found := errors.AsType[*overload.RejectedError](err); found {
		log.Print("answer from the cache instead")
	}
	fmt.Println(price, err)
	// Output: 42 <nil>
}
