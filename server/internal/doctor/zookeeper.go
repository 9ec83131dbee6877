package doctor

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/zookeeper"
)

// zookeeperProbe sends four-letter words, which need no session, except for the
// base of tokens.
type zookeeperProbe struct {
	hosts []string
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	ttl   time.Duration
	root  string
	auth  string // "user:password", empty if there is none
}

func dialZooKeeper(ctx context.Context, u *backend.URL, o Options) (probe, error) {
	secure, err := u.TLS()
	if err != nil {
		return nil, err
	}
	p := &zookeeperProbe{hosts: u.Hosts(), dial: backend.Dialer(secure), ttl: o.TTL, root: cmp.Or(u.Path(), "/interlock")}
	if user, password := account(u); user != "" {
		p.auth = user + ":" + password
	}
	return p, backend.Probe(ctx, p.hosts, secure)
}

func (p *zookeeperProbe) close() {}

func (p *zookeeperProbe) ping(ctx context.Context) error {
	for _, host := range p.hosts {
		if _, err := p.report(ctx, host, "srvr"); err == nil {
			return nil
		} else if ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("none of %s answers", joinOrNone(p.hosts))
}

// report requests the answer to a four-letter word.
func (p *zookeeperProbe) report(ctx context.Context, host, word string) (string, error) {
	conn, err := p.dial(ctx, "tcp", host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // otherwise the wait is unbounded
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(bufio.NewReader(io.LimitReader(conn, 1<<20)))
	return string(text), err
}

// zookeeperFacts are the reports of the servers.
type zookeeperFacts struct {
	silent      []string
	modes       []string
	version     string
	waiting     int            // requests
	conf        map[string]int // numbers of the configuration; nil if it may not be read
	members     int            // of the configuration
	synced      int            // followers, by the leader; -1 if not known
	ttl         time.Duration
	unreadables []string // words that are not allowed
}

func (p *zookeeperProbe) inspect(ctx context.Context, r *Report) error {
	f := zookeeperFacts{ttl: p.ttl, synced: -1}
	for _, host := range p.hosts {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		p.askMember(ctx, host, &f)
		cancel()
	}
	if len(f.silent) == len(p.hosts) {
		return fmt.Errorf("none of %s answers", joinOrNone(p.hosts))
	}
	zookeeperFindings(r, f)
	counter, err := p.counter(ctx)
	if !errors.Is(err, zk.ErrNoNode) {
		r.tokens("zookeeper.tokens", counter, err, time.Now())
	}
	return ctx.Err()
}

func (p *zookeeperProbe) askMember(ctx context.Context, host string, f *zookeeperFacts) {
	srvr, err := p.report(ctx, host, "srvr")
	if err != nil {
		f.silent = append(f.silent, host)
		return
	}
	report := pairs(srvr, ":")
	f.modes = append(f.modes, report["Mode"])
	f.version, _, _ = strings.Cut(report["Zookeeper version"], "-")
	waiting, _ := strconv.Atoi(report["Outstanding"])
	f.waiting = max(f.waiting, waiting)
	if conf, err := p.report(ctx, host, "conf"); err == nil && strings.Contains(conf, "tickTime") {
		f.read(conf)
	} else {
		f.unreadables = append(f.unreadables, "conf")
	}
	if mntr, err := p.report(ctx, host, "mntr"); err == nil {
		if n, err := strconv.Atoi(pairs(mntr, "\t")["zk_synced_followers"]); err == nil {
			f.synced = n
		}
	}
}

func (f *zookeeperFacts) read(conf string) {
	f.conf, f.members = map[string]int{}, 0
	for key, value := range pairs(conf, "=") {
		if n, err := strconv.Atoi(value); err == nil {
			f.conf[key] = n
		}
		if strings.HasPrefix(key, "server.") {
			f.members++
		}
	}
}

func pairs(text, sign string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), sign); ok {
			all[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return all
}

func zookeeperFindings(r *Report, f zookeeperFacts) {
	alone := slices.Contains(f.modes, "standalone")
	r.addIf(alone || f.members == 2, "zookeeper.ensemble", Warning, "mode %s, %d servers are configured", joinOrNone(f.modes), max(f.members, 1))
	lagging := f.synced >= 0 && f.members > 0 && f.synced < f.members-1
	r.addIf(len(f.silent) > 0 || lagging && !alone, "zookeeper.health", Warning, "silent: %s; followers in step: %d (-1 is not known)",
		joinOrNone(f.silent), f.synced)
	r.addIf(olderThan(f.version, 3, 5), "zookeeper.version", Critical, "version %s", f.version)
	r.addIf(f.waiting > 100, "zookeeper.load", Warning, "%d requests wait in the server", f.waiting)
	zookeeperSession(r, f)
	r.add("zookeeper.disk", Info, "the server does not show forceSync and autopurge")
}

func zookeeperSession(r *Report, f zookeeperFacts) {
	const id = "zookeeper.session"
	if f.conf == nil {
		r.add(id, Info, "%s may not be asked", joinOrNone(f.unreadables))
		return
	}
	least, most := time.Duration(f.conf["minSessionTimeout"])*time.Millisecond, time.Duration(f.conf["maxSessionTimeout"])*time.Millisecond
	r.addIf(f.ttl < least || f.ttl > most, id, Warning, "sessions last %v to %v, the TTL is %v", least, most, f.ttl)
}

func olderThan(version string, wantMajor, wantMinor int) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err != nil || major < wantMajor || major == wantMajor && minor < wantMinor
}

// silence is a logger that discards all: errors are returned.
type silence struct{}

func (silence) Printf(string, ...any) {}

// counter reads the base of tokens, in a session that ends with the call. It takes
// three seconds at most. Without a base the error is zk.ErrNoNode.
func (p *zookeeperProbe) counter(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, events, err := zk.Connect(p.hosts, 10*time.Second, zk.WithLogger(silence{}), zk.WithLogInfo(false),
		zk.WithDialer(zookeeper.Dialer(2*time.Second, p.dial)), zk.WithHostProvider(zookeeper.Hosts()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)() // without a quorum a request is unbounded
	if err := greeted(ctx, events); err != nil {
		return 0, err
	}
	if p.auth != "" {
		if err := conn.AddAuth("digest", []byte(p.auth)); err != nil {
			return 0, err
		}
	}
	data, stat, err := conn.Get(p.root + "/" + driver.BaseName)
	if err != nil {
		return 0, err
	}
	counter, err := zookeeper.LastCounter(data, stat)
	if err != nil {
		return 0, &baseError{err}
	}
	return counter, nil
}

// A baseError is an invalid node of the base, with which the driver does not open.
type baseError struct{ error }

// greeted waits for a session.
func greeted(ctx context.Context, events <-chan zk.Event) error {
	for {
		select {
		case <-ctx.Done():
			return errors.New("no session was granted in time")
		case e, open := <-events:
			if !open || e.State == zk.StateAuthFailed {
				return errors.New("no session was granted")
			}
			if e.State == zk.StateHasSession {
				return nil
			}
		}
	}
}
