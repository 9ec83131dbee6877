package testbed

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// get requests a URL like send.
func get(url string, secure *tls.Config, want ...int) ([]byte, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return send(request, time.Second, secure, want...)
}

// send makes one request over a connection of its own. It returns the body of the answer, whose
// status must be one of the wanted.
func send(request *http.Request, bound time.Duration, secure *tls.Config, want ...int) ([]byte, error) {
	client := http.Client{Timeout: bound, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && !slices.Contains(want, answer.StatusCode) {
		err = fmt.Errorf("%s answered %s: %s", request.URL.Path, answer.Status, body)
	}
	return body, err
}
