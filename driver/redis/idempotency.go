package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	idempotencyClaimScript      = newScript(lua("idempotency", "idempotency_claim"))
	idempotencyUpdateScript     = newScript(lua("idempotency", "idempotency_update"))
	idempotencyUnfinishedScript = newReader(lua("idempotency", "idempotency_unfinished"))
)

// Idempotency keeps records of requests in Redis; each step is one script. It
// implements driver.Idempotency. A record is the hash
// interlock:{TAG}:request:PREFIX:OPERATION/SCOPE/KEY with the length before each of
// the three. Finished records expire after their retention. Unfinished ones do not
// expire, and are in the sorted set interlock:{TAG}:requests:PREFIX. All keys of a
// prefix are in one slot.
//
// A record is no more durable than the server. If a crash without appendfsync always,
// or a failover to a replica, loses a record, its request is executed again.
type Idempotency struct {
	conn         *conn
	records, due string // the prefix of records; the set
}

var _ driver.Idempotency = (*Idempotency)(nil)

// NewIdempotency keeps records under prefix, which may be empty; it sends nothing.
// The caller closes the client.
func NewIdempotency(client rueidis.Client, prefix string) *Idempotency {
	own := ownKeys(prefix)
	return &Idempotency{conn: newGuardConn(client, keepsAll), records: own + "request:" + prefix + ":", due: own + "requests:" + prefix}
}

// member returns an unambiguous text for any id.
func member(id driver.IdempotencyID) string {
	return counted(id.Operation) + counted(id.Scope) + counted(id.Key)
}

func counted(name string) string { return strconv.Itoa(len(name)) + ":" + name + "/" }

// parseMember is the inverse of member.
func parseMember(m string) (id driver.IdempotencyID, err error) {
	whole := m
	for _, into := range []*string{&id.Operation, &id.Scope, &id.Key} {
		length, rest, _ := strings.Cut(m, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n >= len(rest) {
			return id, fmt.Errorf("the set of requests is damaged: %q", m)
		}
		*into, m = rest[:n], rest[n+1:]
	}
	if member(id) != whole {
		return id, fmt.Errorf("the set of requests is damaged: %q", whole)
	}
	return id, nil
}

// Claim creates or takes a record; see driver.Idempotency.
func (s *Idempotency) Claim(ctx context.Context, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	asked := request{op: "claim request", name: c.ID.Key}
	if err := c.ID.Validate(); err != nil {
		return driver.IdempotencyRecord{}, err
	}
	if c.Owner == "" || c.Fingerprint == "" || c.Lease <= 0 {
		return driver.IdempotencyRecord{}, problem(asked, interlock.Bug, errors.New("it needs an owner, a fingerprint and a lease"))
	}
	fields, err := s.conn.texts(ctx, asked, idempotencyClaimScript, batch{
		keys: []string{s.records + member(c.ID), s.due},
		args: []string{member(c.ID), c.Fingerprint, c.Owner, microseconds(c.Lease), string(c.Input)},
	})
	if err != nil {
		return driver.IdempotencyRecord{}, err
	}
	if len(fields) != 13 {
		return driver.IdempotencyRecord{}, uncertain(asked, errReply)
	}
	r, err := parseRecord(fields[2], fields[3], fields[4], fields[5], fields[0])
	if err == nil {
		r.Answer.Status, err = strconv.Atoi(fields[9])
	}
	if err != nil {
		return r, problem(asked, interlock.Definite, fmt.Errorf("the record is damaged: %w", err))
	}
	r.ID, r.Fingerprint, r.Finished = c.ID, fields[1], fields[8] == "1"
	r.Input, r.Points = []byte(fields[6]), []byte(fields[7])
	r.Answer.Header, r.Answer.Body, r.Answer.Digest = []byte(fields[10]), []byte(fields[11]), fields[12]
	return r, nil
}

// parseRecord parses the fields that every listing has.
func parseRecord(owner, attempt, until, created, now string) (r driver.IdempotencyRecord, err error) {
	var numbers [4]int64
	for i, s := range []string{attempt, until, created, now} {
		if numbers[i], err = driver.ParseInt(s); err != nil {
			return r, err
		}
	}
	r.Owner, r.Attempt = owner, int(numbers[0])
	r.Remaining = time.Duration(numbers[1]-numbers[3]) * time.Microsecond
	r.Age = time.Duration(numbers[3]-numbers[2]) * time.Microsecond
	return r, nil
}

// Update records a step of an attempt; see driver.Idempotency.
func (s *Idempotency) Update(ctx context.Context, u driver.IdempotencyUpdate) error {
	asked := request{op: "update request", name: u.ID.Key}
	if err := u.ID.Validate(); err != nil {
		return err
	}
	step, points, answer := "update", "0", driver.IdempotencyAnswer{}
	if u.Points != nil {
		points = "1"
	}
	switch {
	case u.Forget:
		step = "forget"
	case u.Answer != nil:
		step, answer = "finish", *u.Answer
	}
	m, err := s.conn.eval(ctx, asked, idempotencyUpdateScript, batch{
		keys: []string{s.records + member(u.ID), s.due},
		args: []string{member(u.ID), u.Owner, step, microseconds(u.Lease), points, string(u.Points),
			strconv.Itoa(answer.Status), string(answer.Header), string(answer.Body), answer.Digest, milliseconds(u.Keep)},
	})
	if err != nil {
		return err
	}
	switch said, _ := m.ToString(); said {
	case "done":
		return nil
	case "lost":
		return problem(asked, interlock.Definite, interlock.ErrLost)
	}
	return uncertain(asked, errReply)
}

// Unfinished lists the records that no process works on; see driver.Idempotency.
func (s *Idempotency) Unfinished(ctx context.Context, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	asked := request{op: "list requests", name: q.Operation, harmless: true}
	only := ""
	if q.Operation != "" {
		only = counted(q.Operation)
	}
	m, err := s.conn.eval(ctx, asked, idempotencyUnfinishedScript, batch{
		keys: []string{s.due},
		args: []string{s.records, microseconds(q.Lapsed), strconv.Itoa(q.Attempts), strconv.Itoa(q.Limit), only},
	})
	if err != nil {
		return nil, err
	}
	rows, err := m.ToArray()
	if err != nil {
		return nil, problem(asked, interlock.Definite, errReply)
	}
	found := make([]driver.IdempotencyRecord, len(rows))
	for i, row := range rows {
		if found[i], err = parseUnfinished(row); err != nil {
			return nil, problem(asked, interlock.Definite, err)
		}
	}
	return found, nil
}

func parseUnfinished(row rueidis.RedisMessage) (driver.IdempotencyRecord, error) {
	fields, err := row.AsStrSlice()
	if err != nil || len(fields) != 7 {
		return driver.IdempotencyRecord{}, errReply
	}
	r, err := parseRecord(fields[2], fields[3], fields[4], fields[5], fields[6])
	if err != nil {
		return r, err
	}
	r.Fingerprint = fields[1]
	r.ID, err = parseMember(fields[0])
	return r, err
}

// Remove does nothing: finished records expire.
func (s *Idempotency) Remove(ctx context.Context, _ int) (int, error) {
	if ctx.Err() != nil {
		return 0, unsent(request{op: "remove requests"}, context.Cause(ctx))
	}
	return 0, nil
}

// microseconds formats a time for the scripts of requests.
func microseconds(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
