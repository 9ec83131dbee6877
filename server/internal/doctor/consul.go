package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/consul"
)

// consulProbe sends requests to the HTTP API of its agent.
type consulProbe struct {
	base   string // "http://host:port"
	token  string
	key    string // of the base of tokens
	ttl    time.Duration
	client *http.Client
}

func dialConsul(ctx context.Context, u *backend.URL, o Options) (probe, error) {
	secure, err := u.TLS()
	if err != nil {
		return nil, err
	}
	p := &consulProbe{base: "http://" + u.Hosts()[0], ttl: o.TTL, key: consul.BaseKey(o.Prefix),
		token:  cmp.Or(u.Query().Get("token"), os.Getenv("CONSUL_HTTP_TOKEN")),
		client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure}}}
	if secure != nil {
		p.base = "https://" + u.Hosts()[0]
	}
	return p, p.ping(ctx)
}

func (p *consulProbe) close() { p.client.CloseIdleConnections() }

func (p *consulProbe) ping(ctx context.Context) error { return p.get(ctx, "/v1/status/leader", nil) }

// errNoEntry reports that a key does not exist.
var errNoEntry = errors.New("there is no such key")

// get reads a JSON answer, or a text. A refused request is a [*consul.StatusError].
func (p *consulProbe) get(ctx context.Context, path string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return err
	}
	if p.token != "" {
		r.Header.Set("X-Consul-Token", p.token)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<22))
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return errNoEntry
	case answer.StatusCode != http.StatusOK:
		return &consul.StatusError{Code: answer.StatusCode, Text: string(text[:min(len(text), 200)])}
	}
	if into, ok := into.(*string); ok {
		*into = string(text)
		return nil
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// consulFacts are the agent's reports of its cluster, or the errors that prevent them.
type consulFacts struct {
	leader   string
	servers  int
	healthy  bool
	may      int // number of servers that may fail
	health   error
	shortest time.Duration // of sessions
	sessions error
	ttl      time.Duration
}

func (p *consulProbe) inspect(ctx context.Context, r *Report) error {
	f := consulFacts{ttl: p.ttl}
	var peers []string
	if err := p.get(ctx, "/v1/status/leader", &f.leader); err != nil {
		return err
	}
	if err := p.get(ctx, "/v1/status/peers", &peers); err != nil {
		return err
	}
	f.servers = len(peers)
	var health struct {
		Healthy          bool
		FailureTolerance int
	}
	f.health = p.get(ctx, "/v1/operator/autopilot/health", &health)
	var status *consul.StatusError
	if errors.As(f.health, &status) && status.Code == http.StatusTooManyRequests { // which reports that it is not healthy
		f.health = nil
	}
	f.healthy, f.may = health.Healthy, health.FailureTolerance
	var self struct {
		DebugConfig struct{ SessionTTLMin string }
	}
	if f.sessions = p.get(ctx, "/v1/agent/self", &self); f.sessions == nil {
		f.shortest, f.sessions = time.ParseDuration(self.DebugConfig.SessionTTLMin)
	}
	consulFindings(r, f)
	counter, err := p.counter(ctx)
	if !errors.Is(err, errNoEntry) {
		r.tokens("consul.tokens", counter, err, time.Now())
	}
	return ctx.Err()
}

// counter reads the base of tokens: it makes every later one higher.
func (p *consulProbe) counter(ctx context.Context) (int64, error) {
	var text string
	if err := p.get(ctx, "/v1/kv/"+url.PathEscape(p.key)+"?raw&consistent", &text); err != nil {
		return 0, err
	}
	counter, err := driver.ParseInt(text)
	if err != nil {
		return 0, &baseError{fmt.Errorf("the key %s is no base of tokens: %w", p.key, err)}
	}
	return counter, nil
}

func consulFindings(r *Report, f consulFacts) {
	r.addIf(f.leader == `""` || f.leader == "", "consul.leader", Critical, "the leader is %s", cmp.Or(f.leader, `""`))
	r.addIf(f.servers < 3, "consul.servers", Warning, "%d servers", f.servers)
	if f.health != nil {
		r.add("consul.health", Info, "the health of the servers may not be read: %v", f.health)
	} else {
		r.addIf(!f.healthy || f.servers >= 3 && f.may == 0, "consul.health", Warning, "healthy: %v, servers that may fail: %d", f.healthy, f.may)
	}
	least := cmp.Or(f.shortest, 10*time.Second) // by Consul's default
	if f.sessions != nil {
		r.add("consul.session", Info, "the agent's configuration may not be read: %v", f.sessions)
	} else {
		r.addIf(f.ttl < least, "consul.session", Critical, "sessions last %v at least, the TTL is %v", least, f.ttl)
	}
}
