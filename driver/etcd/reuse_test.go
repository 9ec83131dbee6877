package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// machine returns a driver with a session, and without a server.
func machine(t *testing.T) (*Driver, *session) {
	d := &Driver{ctx: t.Context(), contenders: map[identity]*contender{}}
	d.session = d.sessionOf(0, &clientv3.LeaseGrantResponse{ID: 7})
	t.Cleanup(d.session.cancel)
	return d, d.session
}

// entered returns the answer, at rev, to a request that put a key after others.
func entered(rev int64, kvs ...*mvccpb.KeyValue) *pb.TxnResponse {
	list := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: kvs}}}
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: rev}, Succeeded: true, Responses: []*pb.ResponseOp{list}}
}

// TestAnswerAfterALaterDeletion: the holder's deletion is received before the answer
// to an earlier contender. The watch does not report new contenders, so only another
// read shows its place.
func TestAnswerAfterALaterDeletion(t *testing.T) {
	t.Parallel()
	d, s := machine(t)
	s.queues.join(&contender{line: "n/", key: "n/holder", session: s})
	holder := &mvccpb.KeyValue{Key: []byte("n/holder"), CreateRevision: 5}
	s.queues.list("n/", 5, s.queues.placesOf([]*mvccpb.KeyValue{holder}))
	c, err := d.register(s, driver.Request{Name: "n", Owner: "me"})
	testbed.OK(t, err)
	me := &mvccpb.KeyValue{Key: []byte(c.key), Value: record{Owner: "me", Base: 1}.encode(), CreateRevision: 10}
	s.queues.perform(s.queues.lines["n/"].apply(del("n/holder", 11)))
	if d.answered(c, entered(10, holder, me), 1, false, false) {
		t.Fatalf("a reply from before the deletion is the last word: state %d", c.state)
	}
	if !d.answered(c, entered(12, me), 1, false, false) || c.state != holding || c.created != 10 {
		t.Fatalf("state %d, created at %d", c.state, c.created)
	}
}

// TestKeyOfAPendingRequest: a key is not reused while a request may still write or
// delete it, and the leftovers of such a request are deleted.
func TestKeyOfAPendingRequest(t *testing.T) {
	t.Parallel()
	release := func(t *testing.T, d *Driver) *contender {
		c, _, err := d.endClaim("n", "me")
		if c == nil || err != nil {
			t.Fatal(c, err)
		}
		return c
	}
	for name, test := range map[string]struct {
		do      func(t *testing.T, d *Driver, c *contender)
		reused  bool
		deleted bool
	}{
		"one release": {func(t *testing.T, d *Driver, _ *contender) {
			d.released(release(t, d))
		}, true, false},
		"a second release": {func(t *testing.T, d *Driver, _ *contender) {
			release(t, d)
			d.released(release(t, d))
		}, false, false},
		"the owner acquires during its release": {func(t *testing.T, d *Driver, c *contender) {
			release(t, d)
			if again, err := d.register(c.session, driver.Request{Name: "n", Owner: "me"}); err != nil || again.key == c.key {
				t.Fatal(again.key, err)
			}
		}, false, false},
		"a release during the acquire": {func(t *testing.T, d *Driver, c *contender) {
			d.addPending(1, c)
			d.released(release(t, d))
			late := &mvccpb.KeyValue{Key: []byte(c.key), Value: record{Owner: "me", Base: 1}.encode(), CreateRevision: 10}
			d.answered(c, entered(10, late), 1, false, false)
			d.addPending(-1, c)
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := machine(t)
			c, err := d.register(s, driver.Request{Name: "n", Owner: "me"})
			testbed.OK(t, err)
			test.do(t, d, c)
			next, err := d.register(s, driver.Request{Name: "n", Owner: "other"})
			testbed.OK(t, err)
			if reused := next.key == c.key; reused != test.reused {
				t.Errorf("used again: %v", reused)
			}
			if deleted := s.queues.isDeleting(c.key); deleted != test.deleted {
				t.Errorf("to be deleted: %v", deleted)
			}
		})
	}
}
