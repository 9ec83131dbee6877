package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/lanes"
)

const (
	maxReady    = 4096             // records that wait for Receive, before nothing more arrives; twice as many may
	commitLimit = 10 * time.Second // of one commit request
	leaveLimit  = 3 * time.Second  // of the last commit, and of leaving the group
	retryPause  = 100 * time.Millisecond
)

// session is one membership of a consumer, with a client of its own. It ends with the consumer,
// when no heartbeat was answered for the session timeout, and when the log does not have an
// offset, or has lost records that were read.
type session struct {
	*consumer
	client *kgo.Client
	sever  context.CancelFunc // ends the client, which does not leave the group
	ctx    context.Context    // ends with the session
	stop   context.CancelCauseFunc

	sent atomic.Int64 // when the last request that keeps the session was sent
	// polling is held while records are read and noted. A change of assignments gets it in
	// between (interrupt), so that no record is taken for one of a later assignment.
	polling sync.Mutex

	records  records // of the client, used again
	recycles bool    // the client has no other pools: those may have what messages refer to

	regulating sync.Mutex // held while fetches are paused and resumed
	commits    lanes.Commits[*assignment]

	// The consumer's mutex guards these.
	lease      *boottime.Lease // nil until the first answer
	timer      *time.Timer
	stored     map[int32]lanes.Committed // what was committed of partitions that are being assigned
	interrupts int
	stopPoll   context.CancelFunc
}

// open returns a session that has sent nothing yet.
func (c *consumer) open() (*session, error) {
	s := &session{consumer: c, stopPoll: func() {}}
	s.commits.Send, s.commits.Problem = s.send, failed
	s.ctx, s.stop = context.WithCancelCause(c.Life)
	client, sever := context.WithCancel(context.Background())
	s.sever = sever
	o := c.queue.options
	options := []kgo.Opt{kgo.WithContext(client), kgo.WithHooks(s), kgo.WithPools(&s.records), kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(c.Queue), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(c.lease), kgo.HeartbeatInterval(min(3*time.Second, c.lease/4)), kgo.RebalanceTimeout(c.lease + o.Drain + commitLimit),
		kgo.OnOffsetsFetched(s.fetched), kgo.AdjustFetchOffsetsFn(s.assign),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { s.revoke(m[c.Queue]) }),
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) { s.lose(interlock.ErrLost) })}
	if o.InstanceID != "" {
		options = append(options, kgo.InstanceID(o.InstanceID))
	}
	if o.ServerSide {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	c.Update(func() { c.session = s })
	var err error
	if s.client, err = kgo.NewClient(c.queue.clientOptions(options...)...); err != nil {
		sever()
		return s, err
	}
	s.recycles = reflect.ValueOf(s.client.OptValue(kgo.WithPools)).Len() == 1
	return s, nil
}

// run reads records until the session ends, and leaves the group.
func (s *session) run() {
	defer s.sever()
	for s.WaitForRoom(s.ctx, maxReady, s.queue.options.Bytes, func() bool { return true }) {
		if !s.arrive() {
			s.poll()
		}
	}
	s.close()
}

// poll takes what the client has read, so that the client reads on meanwhile.
func (s *session) poll() {
	s.polling.Lock()
	defer s.polling.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.Mu.Lock()
	s.stopPoll = cancel
	wanted := s.interrupts > 0 || s.hasRead()
	s.Mu.Unlock()
	if !wanted {
		s.keep(s.client.PollFetches(ctx))
	}
}

// interrupt waits until no records are on their way from the client to their assignments.
func (s *session) interrupt() {
	s.Mu.Lock()
	s.interrupts++
	s.stopPoll()
	s.Mu.Unlock()
	s.polling.Lock()
	defer s.polling.Unlock()
	s.Mu.Lock()
	s.interrupts--
	s.Mu.Unlock()
}

// keep keeps what was read until it arrives.
func (s *session) keep(all kgo.Fetches) {
	all.EachError(func(_ string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		case errors.Is(err, kerr.OffsetOutOfRange):
			s.Update(func() { s.reset[partition] = true })
			s.stop(err)
		case errors.As(err, &loss):
			s.Update(func() { s.forget(partition, loss) })
			s.stop(err)
		default:
			s.OnGroupManageError(err)
		}
	})
	s.Mu.Lock()
	defer s.Mu.Unlock()
	all.EachPartition(func(p kgo.FetchTopicPartition) {
		if a := s.Parts[p.Partition]; a != nil && a.Ready && len(p.Records) > 0 {
			if len(a.read) == 0 {
				a.read = p.Records
			} else {
				a.read = append(a.read, p.Records...)
			}
			s.Transient = nil
		}
	})
}

// forget notes that the log has lost records that were read, as by an election of a replica that did not have
// them. Others have their offsets, so the next session begins there. The mutex is held.
func (s *session) forget(partition int32, loss *kgo.ErrDataLoss) {
	if a := s.Parts[partition]; a != nil && s.owns(a) {
		a.loss = loss
		s.ReportOnce(fmt.Errorf("partition %d: the log has lost what it had from offset %d to %d; it goes on there", partition, loss.ResetTo, loss.ConsumedTo))
	}
}

// hasRead reports whether records can arrive. The mutex is held.
func (s *session) hasRead() bool {
	for _, a := range s.Parts {
		if len(a.read) > 0 && !a.full {
			return true
		}
	}
	return false
}

// arrive adds some of what was read to the partitions. It reports false if there is nothing.
func (s *session) arrive() (arrived bool) {
	s.Update(func() {
		for _, a := range s.Parts {
			n := min(len(a.read), max(1, maxReady/len(s.Parts)))
			if n == 0 || a.full {
				continue
			}
			a.add(a.read[:n])
			a.read = a.read[n:]
			arrived = true
		}
	})
	if arrived {
		s.regulate()
	}
	return arrived
}

// add adds records to the partition. If one replaces a record that a former assignment has read, the session ends:
// that was in the log of an earlier leader. The mutex is held.
func (a *assignment) add(records []*kgo.Record) {
	for _, r := range records {
		if r.Offset < a.known && a.epoch >= 0 && r.LeaderEpoch > a.epoch {
			loss := &kgo.ErrDataLoss{ConsumedTo: a.known, ResetTo: r.Offset}
			a.session.forget(a.Partition, loss)
			a.session.stop(loss)
		}
		if a.loss != nil {
			return
		}
		a.epoch = max(a.epoch, r.LeaderEpoch)
		if r.Attrs.IsControl() { // the end of a transaction
			a.Offsets.Begin(r.Offset + 1)
		} else if m := a.session.Arrive(a, r.Offset, r.Key, len(r.Value)); m != nil {
			a.fill(m, r)
		}
		if a.session.recycles {
			r.Recycle()
		}
	}
}

// regulate pauses the fetches of partitions that are full, and resumes others.
func (s *session) regulate() {
	s.regulating.Lock()
	defer s.regulating.Unlock()
	o := s.queue.options
	var pause, resume []int32
	s.Mu.Lock()
	for p, a := range s.Parts {
		records, bytes := o.Window, o.Bytes
		if a.full {
			records, bytes = max(1, records*3/4), max(1, bytes/4*3)
		}
		switch full := a.Offsets.Full(records, bytes, !a.cut); {
		case full && !a.full:
			pause = append(pause, p)
			a.full = true
		case !full && a.full:
			resume = append(resume, p)
			if a.full = false; len(a.read) > 0 {
				s.stopPoll()
			}
		}
	}
	s.Mu.Unlock()
	if len(pause) > 0 {
		s.client.PauseFetchPartitions(map[string][]int32{s.Queue: pause})
	}
	if len(resume) > 0 {
		s.client.ResumeFetchPartitions(map[string][]int32{s.Queue: resume})
	}
}

// OnBrokerWrite keeps the time at which a request was sent that renews the session.
func (s *session) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, took time.Duration, _ error) {
	if keepsSession(key) {
		s.sent.Store(int64(boottime.Sent().Add(-took)))
	}
}

// OnBrokerRead renews the lease. If the answer was a refusal, the partitions are lost next.
func (s *session) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil || !keepsSession(key) {
		return
	}
	sent := boottime.Instant(s.sent.Load())
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.lease == nil || s.idle() && s.lease.Remaining() <= 0 { // the former answer may have come late
		if s.timer != nil {
			s.timer.Stop()
		}
		s.lease = boottime.NewLease(sent, s.consumer.lease)
		s.timer = time.AfterFunc(s.lease.Remaining(), s.watch)
	}
	s.lease.Renew(sent, s.consumer.lease)
}

func keepsSession(key int16) bool {
	switch kmsg.Key(key) {
	case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.ConsumerGroupHeartbeat:
		return true
	}
	return false
}

// watch ends the session when its lease has expired. Without partitions nothing depends on it: a
// member may have to wait long for its first.
func (s *session) watch() {
	s.Mu.Lock()
	if s.lease == nil {
		s.Mu.Unlock()
		return
	}
	left := s.lease.Remaining()
	idle := s.idle()
	switch {
	case left > 0 && s.ctx.Err() == nil:
		s.timer.Reset(left)
	case idle:
		s.lease = nil
	}
	s.Mu.Unlock()
	if left <= 0 && !idle {
		s.lose(interlock.ErrExpired)
		s.stop(interlock.ErrExpired)
	}
}

// OnGroupManageError reports what keeps the consumer from the group.
func (s *session) OnGroupManageError(err error) {
	if fatal := isFatal(err); fatal != nil {
		s.lose(interlock.ErrLost)
		s.Fail(fatal)
		s.stop(fatal)
		return
	}
	if !errors.Is(err, context.Canceled) && !errors.Is(err, kerr.RebalanceInProgress) {
		s.ReportTransient(err)
	}
}

// fetched notes what was committed of partitions that are being assigned.
func (s *session) fetched(_ context.Context, _ *kgo.Client, r *kmsg.OffsetFetchResponse) error {
	stored := map[int32]lanes.Committed{}
	for _, group := range r.Groups {
		for _, topic := range group.Topics {
			for _, p := range topic.Partitions {
				if p.Offset >= 0 && p.Metadata != nil {
					stored[p.Partition] = lanes.Decode(p.Offset, *p.Metadata)
				}
			}
		}
	}
	s.Update(func() { s.stored = stored })
	return nil
}

// assign begins assignments. Their tokens are durable before anything is delivered.
func (s *session) assign(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	of := offsets[s.Queue]
	if len(of) == 0 {
		return offsets, nil
	}
	logs, err := s.extents(ctx, of)
	if err != nil {
		return offsets, err
	}
	s.interrupt()
	var parts []*assignment
	var partitions []int32
	s.Update(func() {
		for p, offset := range of {
			var a *assignment
			if a, err = s.begin(p, offset.EpochOffset(), logs[p]); err != nil {
				return
			}
			of[p] = kgo.NewOffset().At(a.Offsets.Prefix()).WithEpoch(a.epoch) // the client finds out whether the log was cut
			parts, partitions = append(parts, a), append(partitions, p)
		}
	})
	if err != nil {
		return offsets, err
	}
	for err := errors.New("not committed"); err != nil; {
		if ctx.Err() != nil {
			return offsets, ctx.Err()
		}
		err = nil
		for _, failed := range s.commits.Commit(ctx, parts) {
			if err = errors.Join(err, failed); errors.Is(failed, interlock.ErrLost) {
				return offsets, failed
			}
		}
		if err != nil {
			s.ReportTransient(fmt.Errorf("commit the token of an assignment: %w", err))
			lanes.Pause(ctx, retryPause)
		}
	}
	s.client.ResumeFetchPartitions(map[string][]int32{s.Queue: partitions}) // a pause outlasts its assignment
	s.Update(func() {
		for _, a := range parts {
			a.Ready = s.IsAssigned(a)
		}
	})
	return offsets, nil
}

// extents returns what the logs of partitions have. It does not wait for one that does not answer, such as one without
// a leader, which would delay all others. Then the offset of the group counts, or 0: a fetch refuses an offset that the
// log does not have.
func (s *session) extents(ctx context.Context, of map[int32]kgo.Offset) (map[int32]extent, error) {
	logs, err := s.queue.logs(ctx, s.Queue, slices.Collect(maps.Keys(of)))
	if err == nil || ctx.Err() != nil { // an error returned would end all assignments
		return logs, ctx.Err()
	}
	s.ReportTransient(fmt.Errorf("list offsets: %w", err))
	for p, offset := range of {
		if _, ok := logs[p]; !ok {
			logs[p] = extent{max(0, offset.EpochOffset().Offset), math.MaxInt64}
		}
	}
	return logs, nil
}

// begin creates an assignment. at is the committed offset, below 0 if there is none. The mutex is held.
func (s *session) begin(p int32, at kgo.EpochOffset, has extent) (*assignment, error) {
	if s.lease == nil {
		return nil, interlock.ErrExpired
	}
	if former := s.Parts[p]; former != nil {
		former.End(interlock.ErrLost)
	}
	offset, epoch := at.Offset, at.Epoch
	c, ok := s.stored[p]
	if offset < 0 {
		offset = has.first
		s.guessed[p] = has.end == math.MaxInt64
	}
	if !ok || c.Prefix != offset {
		c = lanes.Committed{Prefix: offset, Next: offset, Token: c.Token}
	}
	beyond := s.reset[p] && offset > has.end
	delete(s.reset, p)
	if (offset < has.first || beyond) && (offset > 0 || !s.guessed[p]) {
		s.ReportOnce(fmt.Errorf("partition %d: the group has offset %d, and the log has %d to %d; it goes on with the first", p, offset, has.first, has.end))
	}
	if beyond {
		offset, epoch, c = has.first, -1, lanes.Committed{Token: c.Token}
	}
	o := lanes.Restore(offset, c, interlock.CounterAt(time.Now()), s.queue.options.Window)
	o.Begin(has.first)
	a := &assignment{session: s, epoch: epoch, known: c.Next, Assignment: lanes.NewAssignment(s.Queue, p, s.Owner, s.lease)}
	err := a.Begin(o)
	if err == nil {
		s.Parts[p] = a
	}
	return a, err
}

// owns reports whether an assignment is of this session.
func (s *session) owns(a *assignment) bool { return a.session == s }

// idle reports whether the session has no partition. The mutex is held.
func (s *session) idle() bool {
	for _, a := range s.Parts {
		if s.owns(a) {
			return false
		}
	}
	return true
}

// lose ends all assignments of the session, and commits nothing.
func (s *session) lose(cause error) {
	s.Lose(cause, s.owns)
	s.interrupt()
}

// revoke gives up partitions; see GiveUp.
func (s *session) revoke(partitions []int32) {
	var parts []*assignment
	s.Mu.Lock()
	for _, p := range partitions {
		if a := s.Parts[p]; a != nil {
			parts = append(parts, a)
		}
	}
	s.Mu.Unlock()
	if len(parts) == 0 {
		return
	}
	if err := s.GiveUp(s.ctx, s.queue.options.Drain, commitLimit, parts...); err != nil {
		s.ReportTransient(fmt.Errorf("commit revoked partitions: %w", err))
	}
	s.interrupt()
	s.Remove(parts...)
}

// close leaves the group, and disconnects.
func (s *session) close() {
	ctx := context.Background()
	closing := s.Closing()
	leave := closing != nil && s.queue.options.Leave
	if closing != nil {
		ctx = closing
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit) // Settle has committed the outcomes
	defer cancel()
	s.Mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.Mu.Unlock()
	if ctx.Err() != nil {
		s.lose(interlock.ErrReleased)
	}
	unwatch := context.AfterFunc(ctx, s.sever)
	s.client.Close() // commits what is held, by revoke
	unwatch()
	s.lose(interlock.ErrReleased)
	s.commits.Close()
	if leave && s.queue.options.InstanceID != "" && ctx.Err() == nil {
		s.leave(ctx)
	}
}

// leave removes a static member from the group. If it fails the group does it when the session
// times out.
func (s *session) leave(ctx context.Context) {
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group = s.group
	member := kmsg.NewLeaveGroupRequestMember()
	member.InstanceID = &s.queue.options.InstanceID
	r.Members = append(r.Members, member)
	_, _ = r.RequestWith(ctx, s.queue.client)
}
