package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/renewal"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func dialCluster(t testing.TB, c *testbed.Cluster) rueidis.Client {
	t.Helper()
	client, err := Dial(c.URL())
	testbed.OK(t, err)
	t.Cleanup(func() {
		client.Close()
		// The client closes connections to nodes that it has left after five seconds.
		stacks := make([]byte, 8<<20)
		testbed.Eventually(t, "its goroutines have ended", bound, func() bool {
			return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "clusterClient)._refresh.func")
		})
	})
	return client
}

// One test for one cluster, because starting it takes long.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := testbed.RedisCluster(t, true)
	client := dialCluster(t, c)
	t.Run("Eviction", func(t *testing.T) { oneNodeEvicts(t, c, client) })
	d := openWith(t, client, &Options{TTL: 10 * time.Second})
	t.Run("Listing", func(t *testing.T) { listOnCluster(t, d) })
	t.Run("ListingOfTags", func(t *testing.T) { listTagsOnCluster(t, d) })
	t.Run("Endpoints", func(t *testing.T) { endpointsOnCluster(t, c, client) })
	t.Run("Together", func(t *testing.T) { togetherOnCluster(t, d) })
	t.Run("Stores", func(t *testing.T) { storesOnCluster(t, c, client) })
	t.Run("Subscriptions", func(t *testing.T) { closedOnCluster(t, c, client) })
	t.Run("Rights", func(t *testing.T) { rightsOnCluster(t, c) })
	t.Run("Migration", func(t *testing.T) { migrateSlot(t, c, d) })
	t.Run("RenewalInAMigration", func(t *testing.T) { renewInAMigration(t, c, d) })
	t.Run("MigrationUnderLoad", func(t *testing.T) { migrateUnderLoad(t, c, client) })
	t.Run("FailoverUnderLoad", func(t *testing.T) { failOverUnderLoad(t, c, client) })
}

// TestASilentMasterFailsOnlyItsSlots: while a master does not answer, or lacks its replica, locks
// on the others are renewed, and guards there write.
func TestASilentMasterFailsOnlyItsSlots(t *testing.T) {
	t.Parallel()
	c := testbed.RedisCluster(t, true, "--cluster-node-timeout", "60000") // none fails over
	client := dialCluster(t, c)
	const ttl = 2 * time.Second
	plain := openWith(t, client, &Options{TTL: ttl})
	confirmed := openWith(t, With(client, Settings{Replicas: 1}), &Options{TTL: ttl})
	onMaster := []string{"b", "c", "a"} // see storesOnCluster
	grants := map[*Driver][]driver.Grant{}
	for _, name := range onMaster {
		for tag, d := range map[string]*Driver{"plain": plain, "confirmed": confirmed} {
			_, g := take(t, d, "{"+name+"}"+tag)
			grants[d] = append(grants[d], g)
		}
	}
	fence, raise := NewFence(client), driver.Raise{Resource: "c", Token: tokenOf(t, 5, 0)}
	testbed.OK(t, fence.Enter(t.Context(), raise))
	c.Servers[0].Pause()
	defer c.Servers[0].Resume()
	c.Servers[2+3].Kill() // the replica of the third master
	since := time.Now()
	testbed.Eventually(t, "more than a TTL has passed", bound, func() bool { return time.Since(since) > ttl+ttl/4 })
	for i := range 3 { // each reads the policies of all nodes first
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := fence.Enter(soon, raise); err != nil {
			t.Errorf("entry %d at a guard on a healthy master: %v", i, err)
		}
		cancel()
		fence.conn.evicts.forget()
	}
	for d, want := range map[*Driver][]bool{plain: {false, true, true}, confirmed: {false, true, false}} {
		for i, g := range grants[d] {
			if held := g.Lease.Remaining() > 0; held != want[i] {
				t.Errorf("confirmed %v: the lock on master %d is held: %v", d == confirmed, i, held)
			}
		}
	}
}

func TestClusterIsRefusedByOtherClients(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://h:1?cluster=yes", "redis://h:1?cluster=true&master_set=m", "redis://h:1/3?cluster=true",
		"redis://h:1?replicas=x", "redis://h:1?fsync=1", "redis://h:1?eviction=some", "redis://h:1?tls_ca=x", "redis://h:1?addr=h:2"} {
		if _, err := Dial(url); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// The facts of every node count, whichever node the client asks first.
func oneNodeEvicts(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	one := dial(t, c.Servers[1].Addr())
	set := func(policy string) {
		testbed.OK(t, one.Do(t.Context(), one.B().ConfigSet().ParameterValue().ParameterValue("maxmemory-policy", policy).Build()).Error())
	}
	set("allkeys-lru")
	defer set("noeviction")
	if d, err := Open(t.Context(), client, nil); !errors.Is(err, ErrEviction) {
		t.Errorf("a master that evicts: %v", err)
		if err == nil {
			d.Close(context.Background())
		}
	}
}

// Names of many slots are held, renewed, awaited and listed.
func listOnCluster(t *testing.T, d *Driver) {
	short := openWith(t, d.conn.client, &Options{TTL: 2 * time.Second})
	var want []string
	owners := map[string]string{}
	grants := map[string]driver.Grant{}
	for i := range 60 {
		name := fmt.Sprintf("list/%02d", i)
		owners[name], grants[name] = take(t, short, name)
		want = append(want, name)
	}
	waiting := map[string]<-chan outcome{}
	for _, name := range want[:10] {
		waiting[name] = await(t, d, name)
	}
	taken := time.Now()
	testbed.Eventually(t, "renewals of all", bound, func() bool { return time.Since(taken) > 2500*time.Millisecond })
	for name, g := range grants {
		if g.Lease.Remaining() <= 0 {
			t.Errorf("%s was not renewed", name)
		}
	}
	states, more, err := d.Locks(t.Context(), "list/", 100)
	if err != nil || more || !slices.Equal(namesOf(states), want) {
		t.Fatalf("%q, %v, %v", namesOf(states), more, err)
	}
	if states, more, err = d.Locks(t.Context(), "list/", 5); err != nil || !more || !slices.Equal(namesOf(states), want[:5]) {
		t.Errorf("the first five: %q, %v, %v", namesOf(states), more, err)
	}
	h, _ := watching(t, d, "list/")
	for _, name := range want {
		release(t, short, name, owners[name])
		if next, ok := waiting[name]; ok {
			release(t, d, name, (<-next).owner) // its acquire may have failed on a busy cluster
		}
	}
	h.await(t, want[59], 1)
	tagged, _ := take(t, d, "job{a}/1")
	if states, _, err := d.Locks(t.Context(), "job{a}/", 10); err != nil || len(states) != 1 {
		t.Errorf("below a tag: %+v, %v", states, err)
	}
	release(t, d, "job{a}/1", tagged)
	if states, _, err := d.Locks(t.Context(), "", 10); err != nil || len(states) != 0 {
		t.Errorf("after all were released: %q, %v", namesOf(states), err)
	}
}

// A list goes on in every slot after a page that ends with a name of a tag.
func listTagsOnCluster(t *testing.T, d *Driver) {
	var want []string
	owners := map[string]string{}
	for i := range batchSize + 10 {
		name := fmt.Sprintf("account/{%03d}", i)
		owners[name], _ = take(t, d, name)
		want = append(want, name)
	}
	if states, more, err := d.Locks(t.Context(), "account/", 1000); err != nil || more || !slices.Equal(namesOf(states), want) {
		t.Errorf("%d of %d locks are listed, %v, %v", len(states), len(want), more, err)
	}
	for name, owner := range owners {
		release(t, d, name, owner)
	}
}

// A cluster may not tell the hosts of its masters: a server that is alone in it does not know its own.
func endpointsOnCluster(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	set := func(kind string) {
		for _, addr := range c.Addrs() {
			mustDo(t, dial(t, addr), "CONFIG", "SET", "cluster-preferred-endpoint-type", kind)
		}
	}
	set("unknown-endpoint")
	defer set("ip")
	p, err := OpenPlain(t.Context(), client, &Options{Prefix: "endpoint:"})
	testbed.OK(t, err)
	testbed.CloseAfter(t, p)
	want := []string{"{a}", "{b}", "{c}"} // one on each master
	for _, name := range want {
		_, err := p.Acquire(testbed.Bounded(t), driver.Request{Name: name, Owner: name})
		testbed.OK(t, err)
		defer func() { testbed.OK(t, p.Release(t.Context(), name, name)) }()
	}
	if states, more, err := p.Locks(t.Context(), "", 10); err != nil || more || !slices.Equal(namesOf(states), want) {
		t.Errorf("%q are listed, %v, %v", namesOf(states), more, err)
	}
}

func togetherOnCluster(t *testing.T, d *Driver) {
	if _, err := d.AcquireAll(t.Context(), askFor("a", "b", "c")); !errors.Is(err, driver.ErrNotInOneStep) {
		t.Errorf("names of several slots: %v", err)
	}
	one := askFor("a{t}", "b{t}", "c{t}")
	if grants, err := d.AcquireAll(t.Context(), one); err != nil || len(grants) != 3 {
		t.Errorf("names of one slot: %v", err)
	}
	releaseAll(t, d, one)
}

// Every store serves names in the slots of every master, and refuses keys of two slots.
func storesOnCluster(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	for i, name := range []string{"b", "c", "a"} {
		if slotOf(name)*3/16384 != i {
			t.Fatalf("%s is not on master %d", name, i)
		}
		useStores(t, client, name)
	}
	f := NewFence(client)
	raise := driver.Raise{Resource: "r{x}", Token: tokenOf(t, 5, 0)}
	if err := f.Enter(t.Context(), raise, driver.Write{Key: "data{y}"}); interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("data in another slot: %v", err)
	}
	for i, err := range NewStream(client, nil).Publish(t.Context(), []driver.Message{{ID: "1", Topic: "a"}, {ID: "2", Topic: "b"}, {ID: "3", Topic: "c"}}) {
		if err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	limitsOnCluster(t, client)
	latticesOnCluster(t, client)
	queuesOnCluster(t, client)
	var masters []rueidis.Client
	for _, addr := range c.Addrs() {
		masters = append(masters, dial(t, addr))
	}
	for _, s := range storeScripts {
		hashes := []string{"SCRIPT", "EXISTS", s.sha()}
		if s.whole != nil {
			hashes = append(hashes, s.whole.sha())
		}
		if !slices.ContainsFunc(masters, func(master rueidis.Client) bool {
			known, err := raw(t, master, hashes...).AsIntSlice()
			return err == nil && slices.Contains(known, 1)
		}) {
			t.Errorf("no master has run the script %.200q", s.source())
		}
	}
}

var storeScripts = []*script{enterScript, rebaseScript, recordEnterScript, putScript, versionScript, stockHoldScript, stockSettleScript,
	stockSupplyScript, stockAdjustScript, stockLevelScript, onceClaimScript, onceDoneScript, onceForgetScript, idempotencyClaimScript,
	idempotencyUpdateScript, idempotencyUnfinishedScript, barrierForgetScript, streamAddScript, limitScript, latticeScript, plainAcquireScript,
	plainReleaseScript, breakScript, streamPutScript, streamClaimScript, streamRenewScript, streamSettleScript, streamLettersScript, streamReplayScript, streamResumeScript}

// TestStoresCostOneRequest: each call of a store is one script.
func TestStoresCostOneRequest(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	useStores(t, client, "a") // the server loads the scripts
	before := calls(t, client)
	useStores(t, client, "b")
	if n := since(t, client, before); n["evalsha"] != 27 || n["eval"] != 0 { // two of them for a break
		t.Errorf("26 calls cost %v", n)
	}
}

// useStores calls each method of the stores, with a name and keys of its slot.
func useStores(t *testing.T, client rueidis.Client, name string) {
	ctx, hash := t.Context(), make([]byte, 32)
	must := func(what string, err error, ok bool) {
		t.Helper()
		if err != nil || !ok {
			t.Errorf("%s of %s: %v", what, name, err)
		}
	}
	tag, token := "{"+name+"}", tokenOf(t, 5, 0)
	raise := driver.Raise{Resource: name, Token: token}
	f, records := NewFence(client), NewRecords(client, "")
	must("enter", f.Enter(ctx, raise, driver.Write{Key: tag + "kept", Value: []byte("1")}), true)
	old, err := f.Rebase(ctx, name, token, "test", "me")
	must("rebase", err, old.Token == token)
	data, err := f.Eval(ctx, raise, "return redis.call('GET', KEYS[1])", []string{tag + "kept"}, nil)
	text, _ := data.ToString()
	must("eval", err, text == "1")
	must("record", records.Enter(ctx, raise, driver.Write{Key: "k", Value: []byte("v")}), true)
	fields, err := records.Get(ctx, name)
	must("fields", err, string(fields["k"]) == "v")

	v, seen := NewValues(client, ""), make(chan driver.Value, 8)
	watch, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- v.Watch(watch, name, func(v driver.Value) { seen <- v }) }()
	<-seen // it watches
	must("put", v.Put(ctx, name, driver.Value{Token: token, Data: []byte("v")}), true)
	testbed.Eventually(t, "the value is seen", bound, func() bool { return string((<-seen).Data) == "v" })
	stop()
	<-watched

	versions, one, two := NewVersions(client, ""), driver.Stamp{Version: 1}, driver.Stamp{Version: 2}
	_, _, err = versions.Apply(ctx, name, driver.Versioned{Stamp: one})
	must("apply", err, true)
	_, _, err = versions.Replace(ctx, name, one, driver.Versioned{Stamp: two})
	must("replace", err, true)
	state, err := versions.Get(ctx, name)
	must("state", err, state.Stamp == two)

	stock := NewStock(client, nil)
	_, err = stock.Supply(ctx, name, 10)
	must("supply", err, true)
	_, err = stock.Hold(ctx, driver.StockHold{Item: name, Reservation: "r", N: 1, TTL: time.Hour})
	must("hold", err, true)
	_, err = stock.Settle(ctx, name, "r", driver.StockConfirmed)
	must("settle", err, true)
	_, err = stock.Adjust(ctx, driver.StockAdjustment{Item: name, Operation: "o", Delta: 1})
	must("adjust", err, true)
	level, err := stock.Level(ctx, name)
	must("level", err, level.Sold == 1)

	once, delivery := NewOnce(client), driver.Delivery{Consumer: "c", ID: tag, Owner: "o", Hash: hash}
	_, err = once.Claim(ctx, delivery, time.Hour)
	must("claim", err, true)
	must("done", once.Done(ctx, delivery, time.Hour), true)
	claimed, err := once.Claim(ctx, delivery, time.Hour)
	must("second claim", err, claimed == driver.ClaimedDone)
	must("forget", once.Forget(ctx, delivery), true)
	claimed, result, err := NewInbox(client, "c"+tag, time.Hour).Apply(ctx, delivery, count(tag+"total"))
	must("inbox", err, claimed == driver.ClaimedNow && string(result) == "1")

	requests, id := NewIdempotency(client, name), driver.IdempotencyID{Operation: "o", Scope: "s", Key: "k"}
	_, err = requests.Claim(ctx, driver.IdempotencyClaim{ID: id, Owner: "o", Fingerprint: "f", Lease: time.Hour})
	must("request", err, true)
	must("give up", requests.Update(ctx, driver.IdempotencyUpdate{ID: id, Owner: "o"}), true)
	unfinished, err := requests.Unfinished(ctx, driver.IdempotencyQuery{Limit: 10})
	must("unfinished", err, len(unfinished) == 1)

	barrier := NewBarrier(client, tag)
	answer, err := barrier.Call(ctx, driver.BarrierCall{Transaction: "t", Branch: "b", Step: "s", Phase: driver.BarrierFirst, Hash: hash,
		Begun: time.Now().Add(-driver.BarrierSpread - time.Hour)}, count(tag+"calls"))
	must("call", err, answer.Ran && string(answer.Result) == "1")
	n, err := barrier.Forget(ctx, time.Now(), nil, 10)
	must("forget branches", err, n == 1)

	p, err := OpenPlain(ctx, client, &Options{Prefix: "plain:"})
	testbed.OK(t, err)
	defer p.Close(context.Background())
	_, broken, err := p.Break(ctx, breaking(name, takePlain(t, p, name)))
	must("break", err, broken)
	must("release", p.Release(ctx, name, takePlain(t, p, name)), true)
	breaks, err := p.Breaks(ctx, name, 10)
	must("breaks", err, len(breaks) == 1)
}

// Subscriptions end with the driver and with the watcher, on any node.
func closedOnCluster(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	for range 5 {
		d := openWith(t, client, nil)
		h, stop := watching(t, d, "")
		h.await(t, "", 1)
		stop()
		testbed.OK(t, d.Close(t.Context()))
	}
	for _, s := range c.Servers {
		node := dial(t, s.Addr())
		testbed.Eventually(t, "no subscription but that of the test's driver", bound, func() bool {
			channels, err := raw(t, node, "PUBSUB", "CHANNELS", pushes+"*").AsStrSlice()
			patterns, failed := raw(t, node, "PUBSUB", "NUMPAT").AsInt64()
			return err == nil && failed == nil && len(channels) <= 1 && patterns == 0
		})
	}
}

// The rights of the package comment, with the one for clusters, are enough in a cluster.
func rightsOnCluster(t *testing.T, c *testbed.Cluster) {
	for _, s := range c.Servers {
		grantRights(t, dial(t, s.Addr()), "+cluster|slots")
	}
	client := dial(t, "app:pw@"+c.Addr()+"?cluster=true")
	d := openShort(t, client)
	mustMiss(t, d, "jobs/1")
	for i := range 3 {
		name := fmt.Sprintf("jobs/%d", i)
		owner, grant := take(t, d, name)
		if err := NewFence(client).Enter(t.Context(), driver.Raise{Resource: name, Token: grant.Token}); err != nil {
			t.Errorf("guard: %v", err)
		}
		if states, _, err := d.Locks(t.Context(), "jobs/", 10); err != nil || len(states) != 1 {
			t.Errorf("%+v, %v", states, err)
		}
		release(t, d, name, owner)
	}
}

// A slot moves while a lock in it is held and awaited: requests that would change it
// are refused and change nothing, and after the move they work as before.
func migrateSlot(t *testing.T, c *testbed.Cluster, d *Driver) {
	const name = "moving"
	slot := slotOf(name)
	from := slot * 3 / 16384
	owner, grant := take(t, d, name)
	waiting := await(t, d, name)
	finish := c.Migrate(t, slot, from, (from+1)%3)
	// All its keys are still there, so that Redis would begin to run a script on them.
	_, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: newOwner(), NoWait: true})
	if k := interlock.Kind(err); err == nil || k != interlock.Retryable {
		t.Errorf("acquire in the middle of the move: %v (%v)", err, k)
	}
	if err := d.Release(t.Context(), name, owner); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("release in the middle of the move: %v", err)
	}
	node := dial(t, c.Servers[from].Addr())
	if holder, err := raw(t, node, "GET", name).ToString(); err != nil || ownerIn(holder) != owner {
		t.Errorf("a release that was refused left the lock to %q, %v", holder, err)
	}
	finish()
	insist(t, "it is held after the move", func(ctx context.Context) error {
		_, err := d.Acquire(ctx, driver.Request{Name: name, Owner: newOwner(), NoWait: true})
		if errors.Is(err, interlock.ErrHeld) {
			return nil
		}
		if err == nil {
			t.Error("granted although it is held")
		}
		return err
	})
	insist(t, "release", func(ctx context.Context) error { return d.Release(ctx, name, owner) })
	next := testbed.Receive(t, waiting, "the waiter")
	if next.err != nil { // the move refused a heartbeat
		insist(t, "the waiter", func(ctx context.Context) (err error) {
			next.grant, err = d.Acquire(ctx, driver.Request{Name: name, Owner: next.owner})
			return err
		})
	}
	if next.grant.Token <= grant.Token {
		t.Errorf("token %v after %v", next.grant.Token, grant.Token)
	}
	release(t, d, name, next.owner)
}

// Leases of one slot are renewed while the slot moves, although its old and its new master have some
// of them each.
func renewInAMigration(t *testing.T, c *testbed.Cluster, d *Driver) {
	names := []string{"{split}1", "{split}2", "{split}3"}
	slot := slotOf(names[0])
	from := slot * 3 / 16384
	to := (from + 1) % 3
	held := make([]*renewal.Holding, len(names))
	for i, name := range names {
		owner, _ := take(t, d, name)
		held[i] = &renewal.Holding{Request: driver.Request{Name: name, Owner: owner}}
	}
	finish := c.Migrate(t, slot, from, to)
	host, port, _ := strings.Cut(c.Servers[to].Addr(), ":")
	mustDo(t, dial(t, c.Servers[from].Addr()), "MIGRATE", host, port, names[1], "0", "5000")
	for i, e := range d.extend(testbed.Bounded(t), held) {
		if !e.Ours || e.Err != nil {
			t.Errorf("%s: %+v", names[i], e)
		}
	}
	finish()
	for i, name := range names {
		insist(t, "release", func(ctx context.Context) error { return d.Release(ctx, name, held[i].Owner) })
	}
}
