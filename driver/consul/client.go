package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// client sends requests to the HTTP API. It sends no write twice.
type client struct {
	url   string // "http://host:port"
	token string
	short *http.Client
	long  *http.Client // of blocking queries, so that they never delay a renewal

	mu   sync.Mutex
	date time.Time // of the last answer; zero before
	at   boottime.Instant
}

// Consul's agent accepts 200 connections of one client address.
const (
	maxRequests = 32
	maxBlocking = 128
)

func newClient(o Options) *client {
	c := &client{url: "http://" + o.Address, token: o.Token, short: &http.Client{Transport: o.Transport}, long: &http.Client{Transport: o.Transport}}
	if o.TLS != nil {
		c.url = "https://" + o.Address
	}
	if o.Transport != nil {
		return c
	}
	pool := func(most int) *http.Transport {
		return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, TLSHandshakeTimeout: 5 * time.Second,
			MaxConnsPerHost: most, MaxIdleConnsPerHost: most, IdleConnTimeout: 90 * time.Second}
	}
	c.short.Transport, c.long.Transport = pool(maxRequests), pool(maxBlocking)
	return c
}

func (c *client) idle() {
	c.short.CloseIdleConnections()
	c.long.CloseIdleConnections()
}

// now returns the agent's clock, by the Date of its last answer, in whole seconds; before
// the first answer it returns that of otherwise.
func (c *client) now(otherwise func() time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.date.IsZero() {
		return otherwise()
	}
	return c.date.Add(boottime.Now().Sub(c.at))
}

// do sends one request and reads the answer. An answer without success is a
// [*StatusError], beside its text.
func (c *client) do(ctx context.Context, h *http.Client, method, path string, body []byte) ([]byte, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if c.token != "" {
		r.Header.Set("X-Consul-Token", c.token)
	}
	answer, err := h.Do(r)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	defer answer.Body.Close()
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		c.mu.Lock()
		c.date, c.at = date, boottime.Now()
		c.mu.Unlock()
	}
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = &StatusError{answer.StatusCode, strings.TrimSpace(string(text[:min(len(text), 500)]))}
	}
	return text, answer.Header, err
}

// withoutURL returns the cause of a failed request, without its URL.
func withoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// entry is a key as stored in Consul. The zero entry does not exist.
type entry struct {
	Key         string
	Value       []byte
	Flags       uint64
	Session     string // of the holder
	CreateIndex uint64
	ModifyIndex uint64
	LockIndex   uint64
}

func (e entry) exists() bool { return e.ModifyIndex > 0 }

// query says how to read keys.
type query struct {
	recurse bool          // all keys that begin with the key
	index   uint64        // block until a change after it; 0 answers at once, consistently
	wait    time.Duration // bound of the block
}

// read reads a key or those below it, and the index to continue from.
func (c *client) read(ctx context.Context, key string, q query) ([]entry, uint64, error) {
	h, values := c.short, url.Values{}
	if q.index > 0 {
		h = c.long
		values.Set("index", strconv.FormatUint(q.index, 10))
		values.Set("wait", q.wait.String())
	} else {
		values.Set("consistent", "")
	}
	if q.recurse {
		values.Set("recurse", "")
	}
	text, header, err := c.do(ctx, h, http.MethodGet, "/v1/kv/"+url.PathEscape(key)+"?"+values.Encode(), nil)
	var status *StatusError
	if err != nil && (!errors.As(err, &status) || status.Code != http.StatusNotFound) {
		return nil, 0, err
	}
	index, err := strconv.ParseUint(header.Get("X-Consul-Index"), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("X-Consul-Index: %w", err)
	}
	var all []entry
	if status == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, max(index, 1), err
}

// get reads one key, consistently.
func (c *client) get(ctx context.Context, key string) (entry, uint64, error) {
	all, index, err := c.read(ctx, key, query{})
	if err != nil || len(all) == 0 {
		return entry{}, index, err
	}
	return all[0], index, nil
}

// op is one operation of a transaction.
type op struct {
	Verb    string
	Key     string
	Value   []byte `json:",omitempty"`
	Flags   uint64 `json:",omitempty"`
	Index   uint64 `json:",omitempty"`
	Session string `json:",omitempty"`
}

// unchanged returns the operation that fails if a key has changed.
func unchanged(key string, seen entry) op {
	if !seen.exists() {
		return op{Verb: "check-not-exists", Key: key}
	}
	return op{Verb: "check-index", Key: key, Index: seen.ModifyIndex}
}

// txn applies all operations, or none with a [*refusal]. A transaction that only
// checks is a consistent read. It returns the entries of the operations that have any.
func (c *client) txn(ctx context.Context, ops ...op) ([]entry, error) {
	type wrapped struct{ KV op }
	var request []wrapped
	for _, o := range ops {
		request = append(request, wrapped{o})
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	text, _, err := c.do(ctx, c.short, http.MethodPut, "/v1/txn?consistent", body)
	var status *StatusError
	if err != nil && (!errors.As(err, &status) || status.Code != http.StatusConflict) {
		return nil, err
	}
	var answer struct {
		Results []struct{ KV entry }
		Errors  []struct {
			OpIndex int
			What    string
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	if status != nil {
		why := map[int]string{}
		for _, e := range answer.Errors {
			if strings.Contains(e.What, "Permission denied") {
				return nil, &StatusError{http.StatusForbidden, e.What}
			}
			why[e.OpIndex] = e.What
		}
		return nil, &refusal{why}
	}
	var entries []entry
	for _, r := range answer.Results {
		entries = append(entries, r.KV)
	}
	return entries, nil
}

// createSession creates a session that depends on its TTL and on no health check. Its end
// deletes its keys.
func (c *client) createSession(ctx context.Context, ttl, lockDelay time.Duration) (id string, err error) {
	body, err := json.Marshal(map[string]any{"Name": "interlock", "TTL": ttl.String(), "LockDelay": lockDelay.String(),
		"Behavior": "delete", "NodeChecks": []string{}, "ServiceChecks": []string{}})
	if err != nil {
		return "", err
	}
	text, _, err := c.do(ctx, c.short, http.MethodPut, "/v1/session/create", body)
	var made struct{ ID string }
	if err == nil {
		err = json.Unmarshal(text, &made)
	}
	return made.ID, err
}

func (c *client) renewSession(ctx context.Context, id string) error {
	_, _, err := c.do(ctx, c.short, http.MethodPut, "/v1/session/renew/"+id, nil)
	return err
}

func (c *client) destroySession(ctx context.Context, id string) error {
	_, _, err := c.do(ctx, c.short, http.MethodPut, "/v1/session/destroy/"+id, nil)
	return err
}
