package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

type etcdProbe struct {
	client *clientv3.Client
	prefix string
	lost   bool // no member has a leader
}

func dialEtcd(ctx context.Context, u *backend.URL, o Options) (probe, error) {
	secure, err := u.TLS()
	if err != nil {
		return nil, err
	}
	if err := backend.Probe(ctx, u.Hosts(), secure); err != nil {
		return nil, err // the client would retry
	}
	cfg := clientv3.Config{Endpoints: u.Hosts(), TLS: secure, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx)}
	cfg.Username, cfg.Password = account(u)
	if deadline, ok := ctx.Deadline(); ok {
		cfg.DialTimeout = time.Until(deadline)
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	return &etcdProbe{client: c, prefix: o.Prefix}, nil
}

func (p *etcdProbe) close() { _ = p.client.Close() }

// ping reads a missing key through the leader, like a grant.
func (p *etcdProbe) ping(ctx context.Context) error {
	if p.lost {
		return errNotServing
	}
	_, err := p.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil // the leader has answered
	}
	return err
}

// etcdFacts are the reports of the members.
type etcdFacts struct {
	voters, learners int
	silent           []string // members that did not answer
	states           []*clientv3.StatusResponse
	clusters         int // of the servers in the URL that answer
	alarms           []string
	auth, denied     bool
}

func (p *etcdProbe) inspect(ctx context.Context, r *Report) error {
	f, err := p.members(ctx)
	if err != nil {
		return err
	}
	hasLeader := func(s *clientv3.StatusResponse) bool { return s.Leader != 0 }
	if p.lost = len(f.states) > 0 && !slices.ContainsFunc(f.states, hasLeader); p.lost {
		f.denied = true // nobody answers
		etcdFindings(r, f)
		return nil
	}
	if err := p.admin(ctx, &f); err != nil {
		return err
	}
	etcdFindings(r, f)
	readable, err := p.rights(ctx, r)
	if err != nil || !readable {
		return err
	}
	return p.tokens(ctx, r)
}

// tokens checks the base of tokens, as a driver does when it opens.
func (p *etcdProbe) tokens(ctx context.Context, r *Report) error {
	reply, err := p.client.Get(ctx, p.prefix+driver.BaseName)
	if err != nil || len(reply.Kvs) == 0 {
		return err
	}
	base, err := driver.ParseInt(string(reply.Kvs[0].Value))
	if err != nil {
		err = &baseError{err}
	}
	r.tokens("etcd.tokens", base+reply.Header.Revision, err, time.Now())
	return nil
}

// members asks all members at once, also at the addresses in the URL: those that members advertise
// may be unreachable from here.
func (p *etcdProbe) members(ctx context.Context) (f etcdFacts, err error) {
	list, err := p.client.MemberList(ctx, clientv3.WithSerializable()) // also without a leader
	if err != nil {
		return f, err
	}
	var addresses [][]string
	for _, m := range list.Members {
		if m.IsLearner {
			f.learners++
		} else {
			f.voters++
		}
		addresses = append(addresses, m.ClientURLs)
	}
	for _, host := range p.client.Endpoints() {
		addresses = append(addresses, []string{host})
	}
	clusters, members := map[uint64]bool{}, map[uint64]*clientv3.StatusResponse{}
	for _, s := range inParallel(addresses, func(urls []string) *clientv3.StatusResponse { return p.status(ctx, urls) }) {
		if s != nil {
			clusters[s.Header.ClusterId], members[s.Header.MemberId] = true, s
		}
	}
	f.clusters = len(clusters)
	for _, m := range list.Members {
		if s := members[m.ID]; s != nil {
			f.states = append(f.states, s)
		} else {
			f.silent = append(f.silent, fmt.Sprintf("%s (%s)", m.Name, strings.Join(m.ClientURLs, ", ")))
		}
	}
	return f, nil
}

// status reads the status of a member from the first address that answers; nil if none does.
func (p *etcdProbe) status(ctx context.Context, urls []string) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	for _, url := range urls {
		if s, err := p.client.Status(ctx, url); err == nil {
			return s
		}
	}
	return nil
}

// admin makes requests that may need rights beyond those of lock clients.
func (p *etcdProbe) admin(ctx context.Context, f *etcdFacts) error {
	alarms, err := p.client.AlarmList(ctx)
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		f.auth, f.denied = true, true
		return nil
	}
	if err != nil {
		return err
	}
	for _, a := range alarms.Alarms {
		f.alarms = append(f.alarms, a.Alarm.String())
	}
	status, err := p.client.AuthStatus(ctx)
	if err == nil {
		f.auth = status.Enabled
	}
	return err
}

func etcdFindings(r *Report, f etcdFacts) {
	size := OK
	switch {
	case f.voters < 3:
		size = Warning
	case f.voters%2 == 0:
		size = Info
	}
	if f.clusters > 1 {
		r.add("etcd.members", Critical, "the servers in the URL belong to %d clusters", f.clusters)
	} else {
		r.add("etcd.members", size, "%d voting members, %d learners", f.voters, f.learners)
	}
	r.addIf(len(f.silent) > 0, "etcd.health", Warning, "%d members answer; silent: %s", len(f.states), joinOrNone(f.silent))
	etcdStates(r, f.states)
	if f.denied {
		r.add("etcd.alarms", Info, "alarms may not be read")
	} else {
		r.addIf(len(f.alarms) > 0, "etcd.alarms", Critical, "alarms: %s", joinOrNone(f.alarms))
	}
	r.addIf(!f.auth, "etcd.auth", Info, "authentication is on: %v", f.auth)
}

// etcdStates checks the reports of the members that answer.
func etcdStates(r *Report, states []*clientv3.StatusResponse) {
	leader, old, behind, full, quota := len(states) > 0, false, uint64(0), 0.0, int64(0)
	var versions []string
	for _, s := range states {
		leader = leader && s.Leader != 0
		old = old || olderThan(s.Version, 3, 4)
		versions = append(versions, s.Version)
		behind = max(behind, s.RaftIndex-min(s.RaftIndex, s.RaftAppliedIndex))
		if quota = max(quota, s.DbSizeQuota); s.DbSizeQuota > 0 {
			full = max(full, float64(s.DbSize)/float64(s.DbSizeQuota))
		}
	}
	slices.Sort(versions)
	versions = slices.Compact(versions)
	r.addIf(!leader, "etcd.leader", Critical, "all members that answer have a leader: %v", leader)
	severity := Info // of different ones
	if old {
		severity = Critical
	}
	r.addIf(old || len(versions) > 1, "etcd.version", severity, "version %s", joinOrNone(versions))
	r.addIf(behind > 1000, "etcd.apply", Warning, "%d committed entries are not applied", behind)
	if quota == 0 {
		r.add("etcd.quota", Info, "the members do not report it: that takes etcd 3.6")
	} else {
		r.addIf(full > 0.8, "etcd.quota", Warning, "%.0f %% of the quota are in use", 100*full)
	}
}

func joinOrNone(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// rights reports whether the user may read and write all keys with the prefix. etcd
// checks the rights of both branches of a transaction. The branch with the writes never
// runs: no key has a revision below 0.
func (p *etcdProbe) rights(ctx context.Context, r *Report) (readable bool, err error) {
	base := p.prefix + driver.BaseName
	_, reading := p.client.Get(ctx, p.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	_, writing := p.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(base), "<", 0)).
		Then(clientv3.OpPut(base, ""), clientv3.OpPut(p.prefix+"\x00", ""), clientv3.OpPut(p.prefix+"\xff", "")).Commit()
	var lacks []string
	for _, right := range []struct {
		name string
		err  error
	}{{"read", reading}, {"write", writing}} {
		switch {
		case errors.Is(right.err, rpctypes.ErrPermissionDenied):
			lacks = append(lacks, right.name)
		case errors.Is(right.err, rpctypes.ErrNoSpace): // the alarms report it
		case right.err != nil:
			return false, right.err
		}
	}
	r.addIf(len(lacks) > 0, "etcd.rights", Critical, "rights on keys with the prefix %q that are missing: %s", p.prefix, joinOrNone(lacks))
	return reading == nil, nil
}
