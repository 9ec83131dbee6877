package embedded

import (
	"context"
	"errors"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Defaults of Options.
const (
	DefaultQuota   = 8 << 30 // the largest size that etcd recommends
	DefaultCompact = 10 * time.Minute
	DefaultCheck   = time.Minute
)

// The node serves nothing while it defragments. So it does that only if this frees half
// of a large file and copies little, or if the size is near the quota.
const (
	defragMin  = 64 << 20  // bytes of a file from which it may be defragmented
	defragMost = 512 << 20 // bytes in use that may be copied while there is room
)

// near reports whether n bytes are more than four fifths of the quota.
func near(n, quota int64) bool { return n > quota/5*4 }

// Status is the size of the data.
type Status struct {
	Size  int64 // bytes of the file
	InUse int64 // bytes of it in use; the rest is reused, or freed by defragmenting
	Quota int64 // bytes of the file at which etcd refuses writes
	// Near reports that InUse is above four fifths of the quota: remove old data, or
	// raise Options.Quota. Defragmenting does not help.
	Near bool
	// Full reports that etcd refuses writes.
	Full bool
}

// Status returns the size of the node's data.
func (s *Server) Status(ctx context.Context) (Status, error) {
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return Status{}, err
	}
	b := s.node.Server.Backend()
	st := Status{Size: b.Size(), InUse: b.SizeInUse(), Quota: s.options.Quota}
	st.Near = near(st.InUse, st.Quota)
	for _, a := range alarms.Alarms {
		st.Full = st.Full || a.Alarm == pb.AlarmType_NOSPACE
	}
	return st, nil
}

// keepSpace checks the size of the data regularly until the server closes.
func (s *Server) keepSpace() {
	defer close(s.kept)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	timer := time.NewTicker(s.options.Check)
	defer timer.Stop()
	k := keeper{Server: s}
	for {
		select {
		case <-timer.C:
			if err := k.check(ctx); err != nil && ctx.Err() == nil {
				s.options.Log.Warn("etcd: the size of its data could not be checked", "error", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// keeper stores the warnings that it has given, and what it tried.
type keeper struct {
	*Server
	warned time.Time
	full   bool  // the last warning was of refused writes
	tried  int64 // the revision at which a full node was defragmented last
}

// repeatWarning is the interval between equal warnings.
const repeatWarning = 10 * time.Minute

func (k *keeper) check(ctx context.Context) error {
	st, err := k.Status(ctx)
	if err != nil {
		return err
	}
	var revision int64
	if st.Full { // the file may contain history
		if revision, err = k.compact(ctx); err != nil {
			return err
		}
	}
	if st.Full && revision != k.tried || pays(st) { // at the same revision, nothing was deleted
		if err := k.node.Server.Backend().Defrag(); err != nil {
			return err
		}
		if st, err = k.Status(ctx); err != nil {
			return err
		}
		k.tried = revision
	}
	if st.Full && !near(st.Size, st.Quota) {
		// An alarm belongs to a member; disarming without a member has no effect and no error.
		self := uint64(k.node.Server.MemberID())
		if _, err := k.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: self, Alarm: pb.AlarmType_NOSPACE}); err != nil {
			return err
		}
		k.options.Log.Warn("etcd: writes are accepted again", "size", st.Size, "quota", st.Quota)
		st.Full = false
	}
	k.warn(st, time.Now())
	return nil
}

// pays reports whether defragmenting is worth the pause.
func pays(st Status) bool {
	half := st.Size >= defragMin && st.InUse < st.Size/2
	return half && st.InUse <= defragMost || near(st.Size, st.Quota) && st.InUse < st.Size/10*9
}

// compact deletes the history, and returns the revision that is left.
func (k *keeper) compact(ctx context.Context) (revision int64, err error) {
	now, err := k.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	_, err = k.client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = nil
	}
	return now.Header.Revision, err
}

// warn warns immediately, then at intervals, while there is a reason.
func (k *keeper) warn(st Status, now time.Time) {
	if !st.Near && !st.Full {
		k.warned, k.full = time.Time{}, false
		return
	}
	if !k.warned.IsZero() && now.Sub(k.warned) < repeatWarning && (k.full || !st.Full) {
		return
	}
	k.warned, k.full = now, st.Full
	level, text := slog.LevelWarn, "etcd: the quota is nearly used up: delete old data or raise the quota"
	if st.Full {
		level, text = slog.LevelError, "etcd: the quota is used up and writes are refused: raise the quota"
	}
	k.options.Log.Log(context.Background(), level, text, "in_use", st.InUse, "size", st.Size, "quota", st.Quota)
}
