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
	DefaultQuota   = 8 << 30 // the most that etcd recommends
	DefaultCompact = 10 * time.Minute
	DefaultCheck   = time.Minute
)

// Nothing is served while the data is defragmented. So that takes place where it frees
// half of a file of some size, and copies little; or where the quota comes near.
const (
	defragMin  = 64 << 20  // bytes of a file that may be defragmented
	defragMost = 512 << 20 // bytes in use that may be copied as long as there is room
)

// near reports whether n bytes are more than four fifths of the quota.
func near(n, quota int64) bool { return n > quota/5*4 }

// Status is how much room the data takes.
type Status struct {
	Size  int64 // bytes of the file
	InUse int64 // bytes of it that are used; the rest is reused, or freed by defragmenting
	Quota int64 // bytes of the file from which etcd refuses writes
	// Near says that InUse is above four fifths of the quota: remove what has ended, or
	// raise Options.Quota. Defragmenting does not help.
	Near bool
	// Full says that etcd refuses writes.
	Full bool
}

// Status asks the node how much room its data takes.
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

// keepSpace looks after the room that the data takes until the server closes.
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
				s.options.Log.Warn("etcd: its room could not be checked", "error", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// keeper remembers of what it has warned.
type keeper struct {
	*Server
	warned time.Time
	full   bool // the last warning was of refused writes
}

// repeatWarning is how often it is warned of the same.
const repeatWarning = 10 * time.Minute

func (k *keeper) check(ctx context.Context) error {
	st, err := k.Status(ctx)
	if err != nil {
		return err
	}
	if st.Full { // what is in the file may be history
		if err := k.compact(ctx); err != nil {
			return err
		}
	}
	if st.Full || pays(st) {
		if err := k.node.Server.Backend().Defrag(); err != nil {
			return err
		}
		if st, err = k.Status(ctx); err != nil {
			return err
		}
	}
	if st.Full && !near(st.Size, st.Quota) {
		// An alarm is a member's: disarming that of nobody does nothing, without an error.
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

// pays reports whether defragmenting is worth its pause.
func pays(st Status) bool {
	half := st.Size >= defragMin && st.InUse < st.Size/2
	return half && st.InUse <= defragMost || near(st.Size, st.Quota) && st.InUse < st.Size/10*9
}

// compact removes the history.
func (k *keeper) compact(ctx context.Context) error {
	now, err := k.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	_, err = k.client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

// warn warns at once, then now and then, as long as there is a reason.
func (k *keeper) warn(st Status, now time.Time) {
	if !st.Near && !st.Full {
		k.warned, k.full = time.Time{}, false
		return
	}
	if !k.warned.IsZero() && now.Sub(k.warned) < repeatWarning && (k.full || !st.Full) {
		return
	}
	k.warned, k.full = now, st.Full
	level, text := slog.LevelWarn, "etcd: the quota comes near: remove what has ended, or raise the quota"
	if st.Full {
		level, text = slog.LevelError, "etcd: the quota is used up and writes are refused: raise the quota"
	}
	k.options.Log.Log(context.Background(), level, text, "in_use", st.InUse, "size", st.Size, "quota", st.Quota)
}
