package etcd

import (
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/group"
)

// mostUnderWay bounds the requests of Acquire and Release under way before further ones wait and
// are sent together. More cost more processor time in client and server at any number of callers.
const mostUnderWay = 1

type (
	requests = group.Group[*pb.TxnRequest, *pb.TxnResponse]
	call     = group.Call[*pb.TxnRequest, *pb.TxnResponse]
)

// groupRequests sends waiting transactions of Acquire and Release together, one for each line:
// etcd checks the conditions of all before it executes the first. A raw name's line may be part
// of another's, so transactions of raw names are sent alone.
func (d *Driver) groupRequests() {
	d.requests.Requests, d.requests.Calls = mostUnderWay, batch
	d.requests.Alone, d.requests.Send, d.requests.Go = d.commit, d.commitTogether, d.tasks.Go
	if d.direct == nil || d.options.RawNames {
		d.requests.Separate()
	}
}

// commitTogether sends each call as a nested transaction with its own conditions. If etcd refuses
// one, or their number, the request has no effect, and each is sent alone.
func (d *Driver) commitTogether(calls []*call) {
	ctx, cancel := d.bounded(d.ctx)
	defer cancel()
	if len(calls) == 1 {
		calls[0].Answer, calls[0].Err = d.commit(ctx, calls[0].Ask)
		return
	}
	r := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(calls))}
	for i, c := range calls {
		r.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: c.Ask}}
	}
	reply, err := d.commit(ctx, r)
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		d.requests.Separate()
	}
	if err != nil && kindOf(err) != interlock.Uncertain {
		group.Each(calls, d.commitTogether)
		return
	}
	for i, c := range calls {
		if c.Err = err; err == nil {
			c.Answer = reply.Responses[i].GetResponseTxn()
			c.Answer.Header = reply.Header
		}
	}
}
