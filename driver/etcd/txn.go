package etcd

import (
	"cmp"
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/group"
)

// The requests of a lock are built here as etcd's own messages, each in one
// allocation. clientv3 copies every condition by reflection, which is a fifth of the
// allocations of its requests.

// callOptions are those of requests sent directly. They permit replies of any length, as clientv3 does.
var callOptions = []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.PerRPCCredentials(requireLeader{})}

// requireLeader adds the header of clientv3.WithRequireLeader, which takes 9 allocations, in 6. With it a
// member without a leader refuses a request before it proposes it; otherwise it would wait for a leader.
type requireLeader struct{}

var leaderHeader = map[string]string{rpctypes.MetadataRequireLeaderKey: rpctypes.MetadataHasLeader}

func (requireLeader) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return leaderHeader, nil
}

func (requireLeader) RequireTransportSecurity() bool { return false }

// directly returns a client of etcd's own interface over the client's connections; nil
// if the client has none, or if its KV was replaced, such as by one that adds a
// prefix. The layers below are those of clientv3 in both cases: they pick an endpoint,
// renew the user's token, and repeat no writes.
func directly(client *clientv3.Client) pb.KVClient {
	own := reflect.TypeOf(clientv3.NewKVFromKVClient(nil, nil))
	if client.ActiveConnection() == nil || reflect.TypeOf(client.KV) != own {
		return nil
	}
	return pb.NewKVClient(client.ActiveConnection())
}

// commit sends a transaction. One that only deletes a key is sent as a deletion.
func (d *Driver) commit(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if d.direct == nil {
		reply, err := d.client.Do(clientv3.WithRequireLeader(ctx), clientv3.OpTxn(conditionsOf(r.Compare), opsOf(r.Success), opsOf(r.Failure)))
		return (*pb.TxnResponse)(reply.Txn()), err
	}
	if len(r.Compare) == 0 && len(r.Success) == 1 && r.Success[0].GetRequestDeleteRange() != nil {
		reply, err := d.direct.DeleteRange(ctx, r.Success[0].GetRequestDeleteRange(), callOptions...)
		return &pb.TxnResponse{Header: reply.GetHeader()}, clientv3.ContextError(ctx, err)
	}
	reply, err := d.direct.Txn(ctx, r, callOptions...)
	return reply, clientv3.ContextError(ctx, err)
}

// delete removes keys in one request, and returns its revision.
func (d *Driver) delete(ctx context.Context, keys ...string) (int64, error) {
	reply, err := d.commit(ctx, deletion(keys))
	return reply.GetHeader().GetRevision(), err
}

// comparison is a pb.Compare with the values that it points to.
type comparison struct {
	pb.Compare
	created pb.Compare_CreateRevision
	changed pb.Compare_ModRevision
}

// absent holds if no key is in the range.
func absent(key, end []byte) *pb.Compare {
	c := &comparison{}
	c.Key, c.RangeEnd, c.Target, c.TargetUnion = key, end, pb.Compare_CREATE, &c.created
	return &c.Compare
}

// createdAt holds if key was created at rev, and not deleted since.
func createdAt(key []byte, rev int64) *pb.Compare {
	c := &comparison{created: pb.Compare_CreateRevision{CreateRevision: rev}}
	c.Key, c.Target, c.TargetUnion = key, pb.Compare_CREATE, &c.created
	return &c.Compare
}

// unchanged holds if key was last written at rev.
func unchanged(key []byte, rev int64) *pb.Compare {
	c := &comparison{changed: pb.Compare_ModRevision{ModRevision: rev}}
	c.Key, c.Target, c.TargetUnion = key, pb.Compare_MOD, &c.changed
	return &c.Compare
}

func opPut(key, value []byte, lease clientv3.LeaseID) *pb.RequestOp {
	var op struct {
		pb.RequestOp
		union pb.RequestOp_RequestPut
		put   pb.PutRequest
	}
	op.put.Key, op.put.Value, op.put.Lease = key, value, int64(lease)
	op.union.RequestPut, op.Request = &op.put, &op.union
	return &op.RequestOp
}

func opDelete(key string) *pb.RequestOp {
	var op struct {
		pb.RequestOp
		union  pb.RequestOp_RequestDeleteRange
		delete pb.DeleteRangeRequest
	}
	op.delete.Key = []byte(key)
	op.union.RequestDeleteRange, op.Request = &op.delete, &op.union
	return &op.RequestOp
}

// opRead reads a key, or all keys of a range in the order of their creation.
func opRead(key, end []byte) *pb.RequestOp {
	var op struct {
		pb.RequestOp
		union pb.RequestOp_RequestRange
		read  pb.RangeRequest
	}
	op.read.Key, op.read.RangeEnd = key, end
	if end != nil {
		op.read.SortOrder, op.read.SortTarget = pb.RangeRequest_ASCEND, pb.RangeRequest_CREATE
	}
	op.union.RequestRange, op.Request = &op.read, &op.union
	return &op.RequestOp
}

// span returns the range of all keys that begin with a line, which ends in "/".
func span(line string) (begin, end []byte) {
	keys := make([]byte, 2*len(line))
	begin, end = keys[:len(line):len(line)], keys[len(line):]
	copy(begin, line)
	copy(end, line)
	end[len(end)-1]++
	return begin, end
}

// opReadLine reads a line in the order of service.
func opReadLine(line string) *pb.RequestOp { return opRead(span(line)) }

func conditionsOf(compares []*pb.Compare) []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, len(compares))
	for i, c := range compares {
		cmps[i] = clientv3.FromCompare(c)
	}
	return cmps
}

// opsOf converts operations of this file for a client that builds its own messages.
func opsOf(requests []*pb.RequestOp) []clientv3.Op {
	ops := make([]clientv3.Op, len(requests))
	for i, r := range requests {
		switch {
		case r.GetRequestPut() != nil:
			p := r.GetRequestPut()
			ops[i] = clientv3.OpPut(string(p.Key), string(p.Value), clientv3.WithLease(clientv3.LeaseID(p.Lease)))
			if p.IgnoreValue {
				clientv3.WithIgnoreValue()(&ops[i])
			}
		case r.GetRequestDeleteRange() != nil:
			ops[i] = clientv3.OpDelete(string(r.GetRequestDeleteRange().Key))
		default:
			get := r.GetRequestRange()
			ops[i] = clientv3.OpGet(string(get.Key))
			if get.RangeEnd != nil {
				ops[i] = clientv3.OpGet(string(get.Key), clientv3.WithRange(string(get.RangeEnd)),
					clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
			}
		}
	}
	return ops
}

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

// requestTimeout bounds one request of a keyspace that has no bound of its own.
const requestTimeout = 5 * time.Second

// keyspace sends requests about the keys that begin with a prefix.
type keyspace struct {
	client *clientv3.Client
	prefix string
	bound  time.Duration // of one request; 0 means requestTimeout
}

func (k keyspace) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeoutCause(ctx, cmp.Or(k.bound, requestTimeout), errSlow)
	return clientv3.WithRequireLeader(bounded), cancel
}

// do sends one transaction.
func (k keyspace) do(ctx context.Context, op, name string, when []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if ctx.Err() != nil {
		return nil, unsent(ctx, op, name)
	}
	rctx, cancel := k.bounded(ctx)
	defer cancel()
	reply, err := k.client.Txn(rctx).If(when...).Then(then...).Else(otherwise...).Commit()
	if err == nil {
		return reply, nil
	}
	err = failed(rctx, op, name, err)
	if !slices.ContainsFunc(slices.Concat(then, otherwise), func(op clientv3.Op) bool { return !op.IsGet() }) {
		err = harmless(err)
	}
	return nil, err
}

// get reads a key, or several by the options.
func (k keyspace) get(ctx context.Context, op, name, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if ctx.Err() != nil {
		return nil, unsent(ctx, op, name)
	}
	rctx, cancel := k.bounded(ctx)
	defer cancel()
	reply, err := k.client.Get(rctx, key, options...)
	if err != nil {
		return nil, harmless(failed(rctx, op, name, err))
	}
	return reply, nil
}
