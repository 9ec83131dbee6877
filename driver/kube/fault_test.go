package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func (s *scene) mustBe(err error, kind interlock.ErrorKind, says string) {
	s.Helper()
	if err == nil || interlock.Kind(err) != kind || !strings.Contains(err.Error(), says) {
		s.Fatalf("error of kind %v, want %v that says %q: %v", interlock.Kind(err), kind, says, err)
	}
}

func (s *scene) try(d *Driver, name, owner string) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return d.Acquire(ctx, driver.Request{Name: name, Owner: owner, NoWait: true})
}

// testLegacyLocksAreRefused, with a Lease beside them, as with a MultiLock, or
// without, and the error explains how to migrate.
func testLegacyLocksAreRefused(s *scene) {
	annotations := map[string]string{legacyKey: `{"holderIdentity":"old-pod","leaseDurationSeconds":15}`}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Annotations: annotations} }
	_, err := s.operator.CoreV1().ConfigMaps(s.namespace).Create(s.Context(), &core.ConfigMap{ObjectMeta: meta("cm")}, metav1.CreateOptions{})
	testbed.OK(s, err)
	//lint:ignore SA1019 this is what old clients use
	_, err = s.operator.CoreV1().Endpoints(s.namespace).Create(s.Context(), &core.Endpoints{ObjectMeta: meta("ep")}, metav1.CreateOptions{})
	testbed.OK(s, err)
	_, err = s.operator.CoreV1().ConfigMaps(s.namespace).Create(s.Context(), &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "data"}}, metav1.CreateOptions{})
	testbed.OK(s, err)
	d := s.open(Options{})
	for name, resource := range map[string]string{"cm": "configmaps", "ep": "endpoints"} {
		_, err := s.try(d, name, "ours")
		s.mustBe(err, interlock.Definite, "remove its annotation "+legacyKey)
		var old *LegacyLockError
		if !errors.As(err, &old) || old.Resource != resource || old.Holder != "old-pod" || old.Name != name {
			s.Fatalf("%+v", old)
		}
		if left := s.Residue(s.T, name); len(left) > 0 {
			s.Fatalf("it took the Lease: %q", left)
		}
	}
	s.acquire(d, "data", "ours") // an object that is no lock
	testbed.OK(s, s.operator.CoreV1().ConfigMaps(s.namespace).Delete(s.Context(), "cm", metav1.DeleteOptions{}))
	s.acquire(d, "cm", "ours") // migrated
}

// allow grants rights in the namespace to the user without rights.
func (s *scene) allow(verbs ...string) {
	s.Helper()
	role := &rbac.Role{ObjectMeta: metav1.ObjectMeta{Name: "locks"}, Rules: []rbac.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs}}}
	_, err := s.operator.RbacV1().Roles(s.namespace).Create(s.Context(), role, metav1.CreateOptions{})
	testbed.OK(s, err)
	binding := &rbac.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "locks"},
		Subjects: []rbac.Subject{{Kind: "User", Name: "user", APIGroup: "rbac.authorization.k8s.io"}},
		RoleRef:  rbac.RoleRef{Kind: "Role", Name: "locks", APIGroup: "rbac.authorization.k8s.io"}}
	_, err = s.operator.RbacV1().RoleBindings(s.namespace).Create(s.Context(), binding, metav1.CreateOptions{})
	testbed.OK(s, err)
}

// testLeasesAloneSuffice: without the right to read ConfigMaps and Endpoints it
// works, and does not check for old locks.
func testLeasesAloneSuffice(s *scene) {
	s.allow("get", "list", "watch", "create", "update")
	config := s.config()
	config.BearerToken = testbed.KubeUser
	var d *Driver
	testbed.Eventually(s, "the rights have reached the API server", patience, func() (ok bool) {
		var err error
		d, err = Open(s.Context(), config, &Options{Namespace: s.namespace})
		return err == nil
	})
	defer d.Close(context.Background())
	s.acquire(d, "n", "ours")
	s.release(d, "n", "ours")
}

func testNoRights(s *scene) {
	config := s.config()
	config.BearerToken = testbed.KubeUser
	_, err := Open(s.Context(), config, &Options{Namespace: s.namespace})
	s.mustBe(err, interlock.Definite, "the rights to get, list, watch, create and update Leases")
}

// testOldServerIsRefused: the real server, with another reported version.
func testOldServerIsRefused(s *scene) {
	s.leases.replace(saysItIs("34"))
	_, err := Open(s.Context(), s.config(), &Options{Namespace: s.namespace})
	s.mustBe(err, interlock.Definite, "this is Kubernetes 1.34")
}

func testNoNamespace(s *scene) {
	d, err := Open(s.Context(), s.config(), &Options{Namespace: "no-such"})
	testbed.OK(s, err)
	defer d.Close(context.Background())
	_, err = s.try(d, "n", "ours")
	s.mustBe(err, interlock.Definite, "namespace no-such")
}

func strip(l *coordination.Lease) { l.Annotations = nil }

// testAnnotationsRemoved while a holder holds, and from a free Lease.
func testAnnotationsRemoved(s *scene) {
	d := s.open(Options{TTL: suiteTTL})
	g := s.acquire(d, "n", "ours")
	s.edit("n", strip)
	testbed.Eventually(s, "the next renewal puts the base and the token back", patience, func() bool {
		token, ok := TokenOf(s.lease("n"))
		return ok && token == g.Token
	})
	if g.Lease.Remaining() <= 0 {
		s.Fatal("the term has ended")
	}
	s.release(d, "n", "ours")
	s.edit("n", strip)
	other := s.open(Options{})
	if next := s.acquire(other, "n", "next"); next.Token <= g.Token {
		s.Fatalf("token %d follows %d", next.Token, g.Token)
	}
}

// testTokensOverDeletion: the process that takes the new Lease connected long
// before the old one was created, and receives none of its events.
func testTokensOverDeletion(s *scene) {
	deaf := &ear{}
	config := s.config()
	config.Wrap(deaf.wrap)
	early := s.openWith(config, Options{})
	deaf.deaf.Store(true)
	first := s.acquire(s.open(Options{}), "n", "first")
	s.remove("n")
	if next := s.acquire(early, "n", "next"); next.Token <= first.Token {
		s.Fatalf("token %d follows %d", next.Token, first.Token)
	}
}

// testBasesOutOfTheQuestion are refused by a running process, with the remedy in the
// error; other locks are not affected.
func testBasesOutOfTheQuestion(s *scene) {
	d := s.open(Options{})
	ahead := interlock.CounterAt(time.Now().Add(interlock.MaxAhead + time.Hour))
	const remove, repair = "remove", "interlock tokens repair"
	for base, says := range map[string]string{"x": remove, "-1": remove, strconv.FormatInt(ahead, 10): repair,
		strconv.FormatInt(interlock.MaxCounter, 10): repair, "9223372036854775807": remove} {
		s.acquire(d, "n", "former "+base)
		s.release(d, "n", "former "+base)
		s.edit("n", func(l *coordination.Lease) { l.Annotations[baseKey] = base })
		s.sees(d, "n", "the edit is seen", func(now sight) bool { return now.lease.Annotations[baseKey] == base })
		_, err := s.try(d, "n", "ours")
		s.mustBe(err, interlock.Definite, says)
		s.edit("n", func(l *coordination.Lease) { delete(l.Annotations, baseKey) })
		s.sees(d, "n", "the edit is seen", func(now sight) bool { return now.lease.Annotations[baseKey] == "" })
	}
	if g := s.acquire(d, "other", "ours"); g.Token.Counter() > interlock.CounterAt(time.Now()) {
		s.Fatalf("token %d is ahead of the clock", g.Token)
	}
}

// testTokenIsFixedForTheTerm, for its holder and for observers.
func testTokenIsFixedForTheTerm(s *scene) {
	d, other := s.open(Options{TTL: suiteTTL}), s.open(Options{})
	g := s.acquire(d, "n", "ours")
	rev := s.lease("n").ResourceVersion
	testbed.Eventually(s, "two renewals", patience, func() bool {
		l := s.lease("n")
		again := l.ResourceVersion != rev
		rev = l.ResourceVersion
		return again && l.Annotations[tokenKey] != ""
	})
	state, err := other.Lock(s.Context(), "n")
	if err != nil || state.Holder == nil || state.Holder.Token != g.Token || state.Holder.Foreign {
		s.Fatalf("%+v, %v, want token %d", state.Holder, err, g.Token)
	}
	if again := s.acquire(d, "n", "ours"); again.Token != g.Token {
		s.Fatalf("token %d became %d", g.Token, again.Token)
	}
}

// testOldBase: a new process takes a Lease with a very old base, as after a
// restore.
func testOldBase(s *scene) {
	long := time.Now().Add(-1000 * time.Hour)
	d := s.open(Options{Now: func() time.Time { return long }})
	old := s.acquire(d, "n", "then")
	s.release(d, "n", "then")
	if ceiling := interlock.CounterAt(long.Add(time.Hour)); old.Token.Counter() > ceiling {
		s.Fatalf("counter %d of a clock at %d", old.Token.Counter(), ceiling)
	}
	floor := interlock.CounterAt(time.Now())
	if g := s.acquire(s.open(Options{}), "n", "now"); g.Token.Counter() < floor {
		s.Fatalf("counter %d is below the clock, %d", g.Token.Counter(), floor)
	}
}

// late makes the next write of a Lease fail for its caller, and send sends it.
func (s *scene) late(method string) (send func() int) {
	held := make(chan func() int, 1)
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != method {
			return next.RoundTrip(r)
		}
		s.leases.replace(nil)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		held <- func() int {
			again := r.Clone(context.Background())
			again.Body = io.NopCloser(strings.NewReader(string(body)))
			answer, err := next.RoundTrip(again)
			if err != nil {
				s.Errorf("the late write: %v", err)
				return 0
			}
			answer.Body.Close()
			return answer.StatusCode
		}
		return nil, errors.New("the connection broke")
	})
	return func() int {
		return testbed.Receive(s, held, "the late write")()
	}
}

func (s *scene) lateWrite(method string, existed bool) {
	s.Helper()
	d := s.open(Options{})
	if existed {
		s.acquire(d, "n", "former")
		s.release(d, "n", "former")
	}
	if existed && method == http.MethodPost {
		s.remove("n")
		s.sees(d, "n", "it is gone", func(now sight) bool { return !now.exists() })
	}
	send := s.late(method)
	_, err := s.try(d, "n", "ours")
	s.mustBe(err, interlock.Uncertain, "the connection broke")
	s.release(d, "n", "ours")
	if status := send(); status != http.StatusConflict {
		s.Fatalf("the late write is answered with %d", status)
	}
	if left := s.Residue(s.T, "n"); len(left) > 0 {
		s.Fatalf("the Lease names %q, which has released", left)
	}
}

// testLateTake: a write that arrives after its owner's release takes nothing.
func testLateTake(s *scene) { s.lateWrite(http.MethodPut, true) }

// testLateCreate: the same for a Lease that did not exist.
func testLateCreate(s *scene) { s.lateWrite(http.MethodPost, false) }

// testLateCreateAfterADeletion: the same if the driver has seen the deletion of a Lease.
func testLateCreateAfterADeletion(s *scene) { s.lateWrite(http.MethodPost, true) }

func testCoordinatedElection(s *scene) {
	d := s.open(Options{})
	strategy := coordination.OldestEmulationVersion
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordination.LeaseSpec{Strategy: &strategy}}
	_, err := s.operator.CoordinationV1().Leases(s.namespace).Create(s.Context(), l, metav1.CreateOptions{})
	testbed.OK(s, err)
	s.sees(d, "n", "it is seen", func(now sight) bool { return now.exists() })
	_, err = s.try(d, "n", "ours")
	s.mustBe(err, interlock.Definite, "coordinated leader election")
}

// testRenewalsShowInWholeSeconds, in which client-go compares them.
func testRenewalsShowInWholeSeconds(s *scene) {
	d := s.open(Options{TTL: suiteTTL})
	s.acquire(d, "n", "ours")
	seen := map[string]int64{} // the second of each revision
	testbed.Eventually(s, "four revisions", patience, func() bool {
		l := s.lease("n")
		seen[l.ResourceVersion] = l.Spec.RenewTime.Unix()
		return len(seen) == 4
	})
	seconds := map[int64]bool{}
	for _, second := range seen {
		seconds[second] = true
	}
	if len(seconds) != len(seen) {
		s.Fatalf("two revisions share a second: %v", seen)
	}
}

// testOthersMetadataIsKept, also if added while we hold.
func testOthersMetadataIsKept(s *scene) {
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "1"}}}
	_, err := s.operator.CoordinationV1().Leases(s.namespace).Create(s.Context(), l, metav1.CreateOptions{})
	testbed.OK(s, err)
	d := s.open(Options{TTL: suiteTTL})
	s.acquire(d, "n", "ours")
	s.edit("n", func(l *coordination.Lease) { l.Annotations["later"] = "2" })
	s.release(d, "n", "ours")
	if l := s.lease("n"); l.Labels["team"] != "a" || l.Annotations["note"] != "1" || l.Annotations["later"] != "2" {
		s.Fatalf("labels %v, annotations %v", l.Labels, l.Annotations)
	}
}

// testLossIsToldAtOnce, by the watch, and not at the next renewal ten seconds
// later.
func testLossIsToldAtOnce(s *scene) {
	d := s.open(Options{})
	for what, do := range map[string]func(){
		"deletion": func() { s.remove("n") },
		"another holder": func() {
			s.edit("n", func(l *coordination.Lease) { l.Spec.HolderIdentity = new("someone") })
		},
	} {
		c := drivertest.Ask("n", what)
		drivertest.Acquire(s, d, c)
		began := time.Now()
		do()
		select {
		case cause := <-c.Lost:
			if !errors.Is(cause, interlock.ErrLost) {
				s.Fatalf("%s: %v", what, cause)
			}
		case <-time.After(d.pace.renew / 2):
			s.Fatalf("%s: no word of it after %v", what, time.Since(began))
		}
		s.release(d, "n", what)
		if what == "another holder" {
			s.remove("n")
		}
		s.sees(d, "n", "it is free", func(now sight) bool { return now.holder() == "" })
	}
}

// testReleaseOvertakesATake: a write under way while its owner releases takes
// nothing, and Acquire returns an error.
func testReleaseOvertakesATake(s *scene) {
	d := s.open(Options{})
	underWay, goOn := make(chan struct{}), make(chan struct{})
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPost {
			s.leases.replace(nil)
			close(underWay)
			<-goOn
		}
		return next.RoundTrip(r)
	})
	done := drivertest.Begin(s, d, drivertest.Ask("n", "ours"))
	testbed.Receive(s, underWay, "the write")
	s.release(d, "n", "ours")
	close(goOn)
	if o := testbed.Receive(s, done, "the end of Acquire"); !errors.Is(o.Err, interlock.ErrReleased) {
		s.Errorf("after a release: %v", o.Err)
	}
	if left := s.Residue(s.T, "n"); len(left) > 0 {
		s.Fatalf("the Lease names %q, which has released", left)
	}
}

// testReleaseEndsAWait, and the lock is not taken later.
func testReleaseEndsAWait(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "n", "holder")
	done := s.queue(d, "n", "ours")
	s.release(d, "n", "ours")
	if o := testbed.Receive(s, done, "the end of Acquire"); !errors.Is(o.Err, interlock.ErrReleased) {
		s.Errorf("after a release: %v", o.Err)
	}
}

// testConflictOfAQuota: the creation of a Lease can fail because its quota has changed meanwhile. That says nothing
// of the Lease, so Acquire does not wait for a change of it.
func testConflictOfAQuota(s *scene) {
	d := s.open(Options{})
	s.leases.replace(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != http.MethodPost {
			return next.RoundTrip(r)
		}
		return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,
				"message":"Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified"}`))}, nil
	})
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	_, err := d.Acquire(ctx, driver.Request{Name: "n", Owner: "ours"})
	s.mustBe(err, interlock.Retryable, "resourcequotas")
	s.leases.replace(nil)
	s.acquire(d, "n", "ours")
}
