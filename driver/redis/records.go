package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var recordEnterScript = newScript(lua("fence", "record_enter").after(constants))

// dataField begins the names of fields with data, unlike those of the mark.
const dataField = "data:"

// Records is a [Fence] that keeps a resource's mark and its data in one key, so that eviction,
// deletion and expiry remove both or neither. The key is the hash
// interlock:{TAG}:record:PREFIX+RESOURCE. A write's Key is the name of a field of the resource.
// It implements driver.Fence.
//
// Use Records on servers that may evict keys, where a Fence is refused. After an
// eviction a resource is as before its first write: its data is gone, and the next
// token enters, whatever it is. Unless noeviction is declared or found, use it only
// for data that may be lost.
type Records struct {
	fence  Fence
	prefix string
}

var _ driver.Fence = (*Records)(nil)

// NewRecords keeps resources under prefix, which may be empty; it sends nothing. The
// caller closes the client.
func NewRecords(client rueidis.Client, prefix string) *Records {
	return &Records{fence: Fence{conn: newConn(client), kind: "record"}, prefix: prefix}
}

// Enter checks the token, raises the mark and sets or deletes fields in one step; see
// driver.Fence.
func (s *Records) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	r.Resource = s.prefix + r.Resource
	b, err := s.fence.entry(r)
	if err != nil {
		return err
	}
	for _, w := range writes {
		if w.Key == "" {
			return problem(request{op: "enter", name: r.Resource}, interlock.Bug, fmt.Errorf("a field needs a name"))
		}
		b.args = append(b.args, how(w), dataField+w.Key, string(w.Value))
	}
	_, err = s.fence.enter(ctx, recordEnterScript, r, b)
	return err
}

// Get returns the fields of a resource, read together; none if nothing was written.
func (s *Records) Get(ctx context.Context, resource string) (map[string][]byte, error) {
	fields, err := s.fence.conn.fields(ctx, request{op: "read record", name: resource}, fenceKey(s.fence.kind, s.prefix+resource))
	data := map[string][]byte{}
	for name, value := range fields {
		if field, ok := strings.CutPrefix(name, dataField); ok {
			data[field] = []byte(value)
		}
	}
	return data, err
}

// Mark returns the mark of a resource; see driver.Fence.
func (s *Records) Mark(ctx context.Context, resource string) (driver.Mark, error) {
	return s.fence.Mark(ctx, s.prefix+resource)
}

// Rebase sets the mark and records why; see [Fence.Rebase].
func (s *Records) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	return s.fence.Rebase(ctx, s.prefix+resource, to, reason, by)
}

func how(w driver.Write) string {
	if w.Delete {
		return "delete"
	}
	return "set"
}
