package doctor

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
)

// rights reports whether the user may read and write all keys that begin with the prefix.
// etcd checks the rights of both branches of a transaction. The branch with the writes is
// never taken: no key has a revision below 0.
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
		case errors.Is(right.err, rpctypes.ErrNoSpace): // of which the alarms tell
		case right.err != nil:
			return false, right.err
		}
	}
	r.addIf(len(lacks) > 0, "etcd.rights", Critical, "rights on keys with the prefix %q that are missing: %s", p.prefix, joinOrNone(lacks))
	return reading == nil, nil
}
