package interop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/kube"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestClientGo runs all tests against client-go's leaderelection on one API server, each
// on its own Leases.
func TestClientGo(t *testing.T) {
	t.Parallel()
	k := testbed.SharedKube(t)
	for name, test := range map[string]func(*kubeBed){
		"WeExcludeIt":                   testWeExcludeClientGo,
		"ItExcludesUs":                  testClientGoExcludesUs,
		"ItCrashes":                     testClientGoCrashes,
		"OurCrash":                      testOurCrashFreesClientGo,
		"NeverTwoAtOnce":                testNeverTwoLeaders,
		"TokensOverAForeignTerm":        testTokensOverAForeignTerm,
		"TokensOverAForeignRecreation":  testTokensOverAForeignRecreation,
		"ForeignHolderIsShownAndBroken": testForeignHolderIsShownAndBroken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &kubeBed{T: t, kube: k, lease: k.Namespace + "-" + strings.ToLower(name)} // of this run
			b.client = b.dial(k.Addr())
			b.ours = b.open(k.Addr())
			test(b)
		})
	}
}

// kubeTTL is the lease duration of both sides.
const kubeTTL = 6 * time.Second // a busy machine renews late

// kubeBed is one Lease with our driver.
type kubeBed struct {
	*testing.T
	kube   *testbed.Kube
	lease  string
	client kubernetes.Interface
	ours   *kube.Driver
}

func (b *kubeBed) config(addr string) *rest.Config {
	return &rest.Config{Host: "https://" + addr, BearerToken: testbed.KubeAdmin, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: b.kube.CA}}
}

func (b *kubeBed) dial(addr string) kubernetes.Interface {
	b.Helper()
	config := b.config(addr)
	security, err := rest.TLSConfigFor(config)
	testbed.OK(b, err)
	transport := &http.Transport{TLSClientConfig: security}
	b.Cleanup(transport.CloseIdleConnections)
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	testbed.OK(b, err)
	client, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: wrapped})
	testbed.OK(b, err)
	return client
}

func (b *kubeBed) open(addr string) *kube.Driver {
	b.Helper()
	d, err := kube.Open(b.Context(), b.config(addr), &kube.Options{TTL: kubeTTL})
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	return d
}

// elector is one candidate of client-go.
type elector struct {
	b     *kubeBed
	id    string
	leads chan struct{} // closed when it leads
	stop  func()        // ends it and waits for its end
	now   atomic.Bool   // it believes that it leads
}

// elect starts a candidate that releases the Lease when it is stopped.
func (b *kubeBed) elect(client kubernetes.Interface, id string, leading func(context.Context)) *elector {
	b.Helper()
	return b.candidate(client, id, true, leading)
}

func (b *kubeBed) candidate(client kubernetes.Interface, id string, givesUp bool, leading func(context.Context)) *elector {
	b.Helper()
	e := &elector{b: b, id: id, leads: make(chan struct{})}
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: b.lease},
			Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: id}},
		LeaseDuration: kubeTTL, RenewDeadline: 4 * time.Second, RetryPeriod: 200 * time.Millisecond,
		ReleaseOnCancel: givesUp,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				e.now.Store(true)
				close(e.leads)
				if leading != nil {
					leading(ctx)
				}
			},
			OnStoppedLeading: func() { e.now.Store(false) },
		},
	})
	testbed.OK(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { le.Run(ctx) })
	e.stop = func() {
		cancel()
		running.Wait()
	}
	b.Cleanup(e.stop)
	return e
}

func (b *kubeBed) mustLead(e *elector) {
	b.Helper()
	select {
	case <-e.leads:
	case <-time.After(patience):
		b.Fatalf("%s does not lead", e.id)
	}
}

func (b *kubeBed) acquire(d *kube.Driver, owner string) driver.Grant {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	g, err := d.Acquire(ctx, driver.Request{Name: b.lease, Owner: owner})
	if err != nil {
		b.Fatalf("%s: %v", owner, err)
	}
	return g
}

func (b *kubeBed) release(d *kube.Driver, owner string) {
	b.Helper()
	if err := d.Release(b.Context(), b.lease, owner); err != nil {
		b.Fatalf("release %s: %v", owner, err)
	}
}

// testWeExcludeClientGo checks that it does not lead while we hold, for longer than a
// lease, and leads at its next check after our release.
func testWeExcludeClientGo(b *kubeBed) {
	b.acquire(b.ours, "ours")
	e := b.elect(b.client, "theirs", nil)
	for end := time.Now().Add(2 * kubeTTL); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if e.now.Load() {
			b.Fatal("it leads while we hold")
		}
	}
	began := time.Now()
	b.release(b.ours, "ours")
	b.mustLead(e)
	if took := time.Since(began); took > kubeTTL {
		b.Fatalf("it leads only %v after our release", took)
	}
}

// testClientGoExcludesUs checks that our watch sees its release.
func testClientGoExcludesUs(b *kubeBed) {
	e := b.elect(b.client, "theirs", nil)
	b.mustLead(e)
	_, err := b.ours.Acquire(b.Context(), driver.Request{Name: b.lease, Owner: "impatient", NoWait: true})
	var held *interlock.HeldError
	if !errors.As(err, &held) || held.Owner != "theirs" {
		b.Fatalf("a Lease that client-go holds: %v", err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), 2*kubeTTL)
	defer cancel()
	if _, err := b.ours.Acquire(ctx, driver.Request{Name: b.lease, Owner: "waiting"}); err == nil {
		b.Fatal("granted while client-go leads and renews")
	}
	b.release(b.ours, "waiting")
	var granted sync.WaitGroup
	granted.Go(func() { b.acquire(b.ours, "next") })
	began := time.Now()
	e.stop()
	granted.Wait()
	b.Logf("granted %v after it was stopped", time.Since(began).Round(time.Millisecond))
}

// testClientGoCrashes checks that ours is granted when its lease ends, and not before.
// A candidate with ReleaseOnCancel would lead while it tries to release, possibly for
// longer than its lease.
func testClientGoCrashes(b *kubeBed) {
	path := testbed.NewProxy(b, b.kube.Addr())
	e := b.candidate(b.dial(path.Addr()), "theirs", false, nil)
	b.mustLead(e)
	path.Cut()
	began := time.Now()
	b.acquire(b.ours, "ours")
	if e.now.Load() {
		b.Fatal("granted while it believes that it leads")
	}
	if took := time.Since(began); took > 2*kubeTTL {
		b.Fatalf("granted only %v after the crash", took)
	}
}

// testOurCrashFreesClientGo checks that it leads only after our lease has ended for us.
func testOurCrashFreesClientGo(b *kubeBed) {
	path := testbed.NewProxy(b, b.kube.Addr())
	dying := b.open(path.Addr())
	g := b.acquire(dying, "dying")
	e := b.elect(b.client, "theirs", nil)
	path.Cut()
	began := time.Now()
	b.mustLead(e)
	if left := g.Lease.Remaining(); left > 0 {
		b.Fatalf("it leads while our lease has %v left", left)
	}
	b.Logf("it leads %v after our crash", time.Since(began).Round(time.Millisecond))
}

// testNeverTwoLeaders has several candidates of both kinds, each for some turns.
func testNeverTwoLeaders(b *kubeBed) {
	const each, rounds = 2, 5
	n := &turns{TB: b}
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(b.Context(), 3*patience)
	defer cancel()
	for i := range each {
		wg.Go(func() {
			for j := range rounds {
				done := make(chan struct{})
				e := b.elect(b.client, fmt.Sprint("theirs ", i, " ", j), func(context.Context) {
					n.take()
					close(done)
				})
				select {
				case <-done:
				case <-ctx.Done():
					b.Error("client-go is not served")
				}
				e.stop()
			}
		})
		d := b.open(b.kube.Addr())
		wg.Go(func() { n.ours(ctx, d, b.lease, fmt.Sprint("ours ", i), rounds) })
	}
	wg.Wait()
	if got := n.total.Load(); got != 2*each*rounds {
		b.Fatalf("%d turns, want %d", got, 2*each*rounds)
	}
}

// testTokensOverAForeignTerm checks that client-go keeps our base, also on a Lease that
// it created itself, and that the same identity again is a new term.
func testTokensOverAForeignTerm(b *kubeBed) {
	var tokens []interlock.Token
	for i := range 3 {
		e := b.elect(b.client, "theirs", nil)
		b.mustLead(e)
		e.stop()
		owner := fmt.Sprint("ours ", i)
		tokens = append(tokens, b.acquire(b.ours, owner).Token)
		b.release(b.ours, owner)
	}
	b.mustRise(tokens)
}

// testTokensOverAForeignRecreation deletes the Lease with its base. client-go creates it
// again, and a process that never saw the old one acquires it.
func testTokensOverAForeignRecreation(b *kubeBed) {
	var tokens []interlock.Token
	for i := range 3 {
		owner := fmt.Sprint("ours ", i)
		tokens = append(tokens, b.acquire(b.ours, owner).Token)
		b.release(b.ours, owner)
		testbed.OK(b, b.client.CoordinationV1().Leases("default").Delete(b.Context(), b.lease, metav1.DeleteOptions{}))
		e := b.elect(b.client, "theirs", nil)
		b.mustLead(e)
		e.stop()
		fresh := b.open(b.kube.Addr())
		owner = fmt.Sprint("fresh ", i)
		tokens = append(tokens, b.acquire(fresh, owner).Token)
		b.release(fresh, owner)
	}
	b.mustRise(tokens)
}

func (b *kubeBed) mustRise(tokens []interlock.Token) {
	b.Helper()
	for i := range tokens {
		if i > 0 && tokens[i] <= tokens[i-1] {
			b.Fatalf("token %d came after %d", tokens[i], tokens[i-1])
		}
	}
}

// testForeignHolderIsShownAndBroken checks that it stops leading, and ours is next.
func testForeignHolderIsShownAndBroken(b *kubeBed) {
	path := testbed.NewProxy(b, b.kube.Addr())
	e := b.candidate(b.dial(path.Addr()), "theirs", false, nil)
	b.mustLead(e)
	state, err := b.ours.Lock(b.Context(), b.lease)
	if h := state.Holder; err != nil || h == nil || !h.Foreign || h.Owner != "theirs" || h.Token != 0 || h.Expires <= 0 {
		b.Fatalf("%+v, %v", state.Holder, err)
	}
	path.Cut() // otherwise it would lead again immediately
	if _, ok, err := b.ours.Break(b.Context(), driver.Break{Name: b.lease, Owner: "theirs", Reason: "its node is gone", By: "test"}); !ok || err != nil {
		b.Fatalf("break: %v, %v", ok, err)
	}
	began := time.Now()
	b.acquire(b.ours, "ours")
	if took := time.Since(began); took > kubeTTL/2 {
		b.Fatalf("a broken lock was free only after %v", took)
	}
	broken, err := b.ours.Breaks(b.Context(), b.lease, 10)
	if err != nil || len(broken) != 1 || broken[0].Owner != "theirs" {
		b.Fatalf("%+v, %v", broken, err)
	}
}
