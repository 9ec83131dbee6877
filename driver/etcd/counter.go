package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// base is added to create revisions. mod is the revision at which the key got this
// value; 0 means that no valid base is known.
type base struct {
	value int64
	mod   int64
}

// tokenCounter keeps the base of a session's tokens. The driver's mutex guards its fields.
type tokenCounter struct {
	*session
	base    base
	highest int64 // that the session has seen
}

func readBase(kv *mvccpb.KeyValue) (base, error) {
	value, err := driver.ParseInt(string(kv.Value))
	if err != nil || value < 0 || value > interlock.MaxCounter {
		return base{}, fmt.Errorf("%q is not a base of tokens: it holds %q", kv.Key, kv.Value)
	}
	return base{value: value, mod: kv.ModRevision}, nil
}

// current returns the base as last read, or raises it again if it was deleted or lowered.
func (c *tokenCounter) current(ctx context.Context) (base, error) {
	c.d.mu.Lock()
	b := c.base
	c.d.mu.Unlock()
	if b.mod != 0 {
		return b, nil
	}
	return c.raise(ctx)
}

// raise makes base + revision at least the time of the call, and the base not lower than one that
// this session has seen. It adds driver.Headroom: of many sessions that open at once one raises
// the base, and the others find it high enough.
func (c *tokenCounter) raise(ctx context.Context) (base, error) {
	floor := c.floor()
	least, err := c.d.options.Seed.Floor(c.d.options.Now())
	if err != nil {
		return base{}, refusedBase(err)
	}
	for range baseAttempts {
		b, rev, err := c.raiseOnce(ctx, least)
		if err != nil {
			return base{}, err
		}
		if err := c.proceeds(floor, rev); err != nil {
			return base{}, err
		}
		if b.mod != 0 {
			c.adopt(b)
			return b, nil
		}
	}
	return base{}, problem(opRaise, "", interlock.Retryable, errors.New("other clients kept changing it"))
}

const opRaise = "raise base of tokens"

// raiseOnce reads the base and raises it if its counter is below least. The zero
// base means that another session was faster.
func (c *tokenCounter) raiseOnce(ctx context.Context, least int64) (base, int64, error) {
	rctx, cancel := c.d.opening(ctx)
	defer cancel()
	now, rev, err := c.read(rctx)
	if err != nil {
		return base{}, 0, err
	}
	if implausible := c.d.plausible(rctx, now, rev); implausible != nil {
		return c.repair(rctx, now, rev, implausible)
	}
	want := max(least-rev, c.seen())
	if now.mod != 0 && now.value >= want {
		return now, rev, nil
	}
	if err := c.d.judgeClock(rctx, now, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	return c.put(rctx, now, max(0, want+driver.Headroom.Microseconds()))
}

// read reads the base, and the revision at which it is valid.
func (c *tokenCounter) read(ctx context.Context) (base, int64, error) {
	var reply *clientv3.GetResponse
	err := c.d.patiently(ctx, func(ctx context.Context) (err error) {
		reply, err = c.d.client.Get(ctx, c.d.layout.base())
		return err
	})
	switch {
	case err != nil:
		return base{}, 0, failed(ctx, opRaise, "", err)
	case len(reply.Kvs) == 0:
		return base{}, reply.Header.Revision, nil
	}
	b, err := readBase(reply.Kvs[0])
	if err != nil {
		return base{}, 0, refusedBase(err)
	}
	return b, reply.Header.Revision, nil
}

// put writes a base over the one that was read, with any records.
func (c *tokenCounter) put(ctx context.Context, over base, value int64, records ...clientv3.Op) (base, int64, error) {
	key := c.d.layout.base()
	put, err := c.d.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", over.mod)).
		Then(append(records, clientv3.OpPut(key, strconv.FormatInt(value, 10)))...).Commit()
	switch {
	case err != nil:
		return base{}, 0, failed(ctx, opRaise, "", err)
	case !put.Succeeded:
		return base{}, put.Header.Revision, nil
	}
	return base{value: value, mod: put.Header.Revision}, put.Header.Revision, nil
}

// repair lowers an implausible base to the clock, if Options ask for that, and
// records it as a forced release of driver.BaseName.
func (c *tokenCounter) repair(ctx context.Context, b base, rev int64, implausible error) (base, int64, error) {
	repair := c.d.options.Seed.Repair
	if repair == nil || c.seen() > 0 {
		return base{}, 0, refusedBase(implausible)
	}
	if err := c.d.judgeClock(ctx, base{}, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	now := c.d.options.Now()
	value := max(0, interlock.CounterAt(now.Add(driver.Headroom))-rev)
	record, err := json.Marshal(breaking{Owner: repair.Record(b.value+rev, value+rev),
		Reason: repair.Reason, By: repair.By, At: now.UTC().Round(0)})
	if err != nil {
		return base{}, 0, refusedBase(err)
	}
	return c.put(ctx, b, value, clientv3.OpPut(c.d.layout.broken(driver.BaseName, rev), string(record)))
}

func refusedBase(err error) error {
	return problem(opRaise, "", interlock.Definite, err)
}

// seen returns the highest base that this session has seen.
func (c *tokenCounter) seen() int64 {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.highest
}

// adopt stores b if it is newer. It ignores a lower base, whose tokens would be below granted
// ones, and an implausible one: the next grant reads that and checks it by the server's clock.
func (c *tokenCounter) adopt(b base) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.adoptLocked(b)
}

func (c *tokenCounter) adoptLocked(b base) {
	switch {
	case b.mod < c.base.mod:
	case b.value < c.highest, driver.Plausible(b.value+b.mod, c.d.options.Now()) != nil:
		c.base = base{}
	default:
		c.base, c.highest = b, b.value
	}
}

// observe stores the base from a read; none means that it was deleted. The caller
// holds the driver's mutex.
func (c *tokenCounter) observe(kvs []*mvccpb.KeyValue) {
	if len(kvs) == 0 {
		c.base = base{}
		return
	}
	b, err := readBase(kvs[0])
	if err != nil {
		c.base = base{} // the next raise reports the error
		return
	}
	c.adoptLocked(b)
}

// Token returns the token of the contender with this create revision. It is for
// writers in the same namespace that hold the lock through another client and use
// the same guard. It reads the base as of that revision. Once etcd has compacted
// the revision, the error is Definite.
func (d *Driver) Token(ctx context.Context, createRevision int64) (interlock.Token, error) {
	b, err := d.baseAt(ctx, "convert create revision", createRevision, fmt.Errorf("the namespace had no base at revision %d", createRevision))
	if err != nil {
		return 0, err
	}
	return interlock.NewToken(b.value+createRevision, 0)
}

// baseAt reads the base as of a revision, 0 means now; missing is the error if there was none.
func (d *Driver) baseAt(ctx context.Context, op string, rev int64, missing error) (b base, err error) {
	reply, err := d.keys.get(ctx, op, "", d.layout.base(), clientv3.WithRev(rev))
	if err != nil {
		return b, err
	}
	if err = missing; len(reply.Kvs) > 0 {
		b, err = readBase(reply.Kvs[0])
	}
	if err != nil {
		err = problem(op, "", interlock.Definite, err)
	}
	return b, err
}

// Revision returns the create revision of the contender that was granted token. It
// reads the bases of the namespace, newest first, one request each, until one was
// valid at the revision that it yields. An error of kind Definite means that there
// is none, or that etcd has compacted it.
func (d *Driver) Revision(ctx context.Context, token interlock.Token) (int64, error) {
	for at := int64(0); ; {
		b, err := d.baseAt(ctx, "convert token", at, fmt.Errorf("no base of this namespace yields %v", token))
		if err != nil {
			return 0, err
		}
		if rev := token.Counter() - b.value; rev > b.mod {
			return rev, nil
		}
		at = b.mod - 1
	}
}

// clockBound bounds a request for a server's time.
const clockBound = time.Second

// serverClock returns the time of the server that answers. etcd's API has no clock,
// but its HTTP answers have a date: those of gRPC with TLS, and those to /version
// otherwise. A client in the server's process has the server's clock. ok is false if
// no server returned a date.
func (d *Driver) serverClock(ctx context.Context) (now time.Time, ok bool) {
	conn := d.client.ActiveConnection()
	if conn == nil {
		return time.Now(), true
	}
	ctx, cancel := context.WithTimeout(ctx, clockBound)
	defer cancel()
	var header metadata.MD
	_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(d.layout.base()), Serializable: true}, grpc.Header(&header))
	if date := header.Get("date"); err == nil && len(date) > 0 {
		return dateOf(date[0])
	}
	for _, endpoint := range d.client.Endpoints() {
		if now, ok = askClock(ctx, endpoint); ok {
			return now, true
		}
	}
	return time.Time{}, false
}

func dateOf(text string) (time.Time, bool) {
	at, err := http.ParseTime(text)
	return at, err == nil
}

// askClock reads the date of an endpoint without TLS.
func askClock(ctx context.Context, endpoint string) (time.Time, bool) {
	_, host, ok := strings.Cut(endpoint, "://")
	if !ok {
		host = endpoint
	} else if !strings.HasPrefix(endpoint, "http://") {
		return time.Time{}, false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/version", nil)
	if err != nil {
		return time.Time{}, false
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return time.Time{}, false
	}
	defer answer.Body.Close()
	return dateOf(answer.Header.Get("Date"))
}

// maxStep bounds how far a base is raised at once if no server returns its time. The clock of
// this process cannot be checked then.
const maxStep = 366 * 24 * time.Hour

// judgeClock rejects a clock of this process that is ahead of the server's, before
// it raises base b at revision rev.
func (d *Driver) judgeClock(ctx context.Context, b base, rev int64) error {
	server, ok := d.serverClock(ctx)
	switch {
	case ok:
		return driver.SameClock(d.options.Now(), server)
	case b.mod == 0:
		return nil
	}
	last := time.UnixMicro(interlock.EpochUnixMicro + b.value + rev)
	return driver.SameClock(d.options.Now(), last.Add(maxStep))
}

// plausible rejects a base whose tokens guards would reject. The process's own clock is enough to
// accept a base; only the server's clock can reject one.
func (d *Driver) plausible(ctx context.Context, b base, rev int64) error {
	err := driver.Plausible(b.value+rev, d.options.Now())
	if err == nil {
		return nil
	}
	if server, ok := d.serverClock(ctx); ok {
		return driver.Plausible(b.value+rev, server)
	}
	return err
}
