package main

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// client posts to its own server, over real connections on loopback.
type client struct {
	url    string
	http   http.Client
	server http.Server
	ended  chan error
}

func newClient(handler http.Handler) (*client, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &client{url: "http://" + listener.Addr().String(), ended: make(chan error, 1)}
	c.http.Transport = &http.Transport{}
	c.server.Handler = handler
	go func() { c.ended <- c.server.Serve(listener) }()
	return c, nil
}

// post makes one attempt at a request.
func (c *client) post(ctx context.Context, attempt, key string) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Attempt", attempt)
	response, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func (c *client) close(ctx context.Context) error {
	c.http.CloseIdleConnections()
	err := c.server.Shutdown(ctx)
	if served := <-c.ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
