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

// answers are the answers of one server to four-letter words.
type answers struct {
	host, srvr, conf, mntr string
	err                    error // of srvr
}

// zookeeperFacts are the reports of the servers.
type zookeeperFacts struct {
	silent   []string
	idle     []string // servers without a majority
	modes    []string
	versions []string
	waiting  int            // requests
	conf     map[string]int // numbers of the configuration; nil if it may not be read
	members  int            // of the configuration, without observers; 0 if it may not be read
	synced   int            // followers, by the leader; -1 if not known
	ttl      time.Duration
}

func (p *zookeeperProbe) inspect(ctx context.Context, r *Report) error {
	f := zookeeperFacts{ttl: p.ttl, synced: -1}
	for _, a := range inParallel(p.hosts, func(host string) answers { return p.ask(ctx, host) }) {
		f.add(a)
	}
	if len(f.silent) == len(p.hosts) {
		return fmt.Errorf("none of %s answers", joinOrNone(p.hosts))
	}
	p.hosts = slices.DeleteFunc(p.hosts, func(host string) bool { return slices.Contains(f.silent, host) })
	zookeeperFindings(r, f)
	if len(f.idle) == len(p.hosts) {
		return ctx.Err() // there is no session
	}
	counter, err := p.counter(ctx)
	if !errors.Is(err, zk.ErrNoNode) {
		r.tokens("zookeeper.tokens", counter, err, time.Now())
	}
	return ctx.Err()
}

// ask sends the words to one server.
func (p *zookeeperProbe) ask(ctx context.Context, host string) answers {
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	a := answers{host: host}
	if a.srvr, a.err = p.report(ctx, host, "srvr"); a.err == nil {
		a.conf, _ = p.report(ctx, host, "conf") // unknown, as if it was not allowed
		a.mntr, _ = p.report(ctx, host, "mntr")
	}
	return a
}

// add adds the answers of one server. It answers with a sentence if a word is not allowed.
func (f *zookeeperFacts) add(a answers) {
	if a.err != nil {
		f.silent = append(f.silent, a.host)
		return
	}
	if strings.Contains(a.srvr, "not currently serving") {
		f.idle = append(f.idle, a.host)
		return
	}
	report := pairs(a.srvr, ":")
	if mode := report["Mode"]; mode != "" {
		version, _, _ := strings.Cut(report["Zookeeper version"], "-")
		f.modes, f.versions = append(f.modes, mode), append(f.versions, version)
		waiting, _ := strconv.Atoi(report["Outstanding"])
		f.waiting = max(f.waiting, waiting)
	}
	if strings.Contains(a.conf, "tickTime") {
		f.read(a.conf)
	}
	if n, err := strconv.Atoi(pairs(a.mntr, "\t")["zk_synced_followers"]); err == nil {
		f.synced = n
	}
}

func (f *zookeeperFacts) read(conf string) {
	f.conf, f.members = map[string]int{}, 0
	for key, value := range pairs(conf, "=") {
		if n, err := strconv.Atoi(value); err == nil {
			f.conf[key] = n
		}
		if strings.HasPrefix(key, "server.") && !strings.Contains(value, ":observer") {
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
	zookeeperEnsemble(r, f)
	if len(f.versions) == 0 {
		r.add("zookeeper.version", Info, "no server reports it: srvr may not be asked, or a majority is missing")
	} else {
		old := slices.ContainsFunc(f.versions, func(v string) bool { return olderThan(v, 3, 5) })
		slices.Sort(f.versions)
		r.addIf(old, "zookeeper.version", Critical, "version %s", joinOrNone(slices.Compact(f.versions)))
	}
	r.addIf(f.waiting > 100, "zookeeper.load", Warning, "%d requests wait in the server", f.waiting)
	zookeeperSession(r, f)
	r.add("zookeeper.disk", Info, "the server does not show forceSync and autopurge")
}

// zookeeperEnsemble checks the number of servers, and that they form a majority.
func zookeeperEnsemble(r *Report, f zookeeperFacts) {
	alone := slices.Contains(f.modes, "standalone")
	size := OK
	switch {
	case alone && len(f.modes) > 1:
		size = Critical
	case alone || f.members == 1 || f.members == 2:
		size = Warning
	case f.members == 0:
		size = Info
	}
	r.add("zookeeper.ensemble", size, "modes: %s; configured servers that vote: %d (0 is not known)", joinOrNone(f.modes), f.members)
	health := OK
	switch {
	case len(f.versions) == 0 && len(f.idle) > 0:
		health = Critical
	case len(f.silent)+len(f.idle) > 0, !alone && f.synced >= 0 && f.synced < f.members-1:
		health = Warning
	case len(f.versions) == 0:
		health = Info
	}
	r.add("zookeeper.health", health, "silent: %s; without a majority: %s; followers in step: %d (-1 is not known)",
		joinOrNone(f.silent), joinOrNone(f.idle), f.synced)
}

func zookeeperSession(r *Report, f zookeeperFacts) {
	const id = "zookeeper.session"
	if f.conf == nil {
		r.add(id, Info, "conf may not be asked")
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
