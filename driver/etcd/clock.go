package etcd

import (
	"context"
	"net/http"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// clockBound bounds a request for a server's time.
const clockBound = time.Second

// serverClock returns the time of the server that answers. etcd's API has no clock,
// but its HTTP answers have a date: those of gRPC with TLS, and those to /version
// otherwise. A client in the server's process has the server's clock. ok is false if
// no server returned a date.
func (d *Driver) serverClock(ctx context.Context) (now time.Time, ok bool) {
	conn := d.client.ActiveConnection()
	if conn == nil {
		return time.Now(), true
	}
	ctx, cancel := context.WithTimeout(ctx, clockBound)
	defer cancel()
	var header metadata.MD
	_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(d.layout.base()), Serializable: true}, grpc.Header(&header))
	if date := header.Get("date"); err == nil && len(date) > 0 {
		return dateOf(date[0])
	}
	for _, endpoint := range d.client.Endpoints() {
		if now, ok = askClock(ctx, endpoint); ok {
			return now, true
		}
	}
	return time.Time{}, false
}

func dateOf(text string) (time.Time, bool) {
	at, err := http.ParseTime(text)
	return at, err == nil
}

// askClock reads the date of an endpoint without TLS.
func askClock(ctx context.Context, endpoint string) (time.Time, bool) {
	_, host, ok := strings.Cut(endpoint, "://")
	if !ok {
		host = endpoint
	} else if !strings.HasPrefix(endpoint, "http://") {
		return time.Time{}, false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/version", nil)
	if err != nil {
		return time.Time{}, false
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return time.Time{}, false
	}
	defer answer.Body.Close()
	return dateOf(answer.Header.Get("Date"))
}

// maxStep bounds how far a base is raised at once if no server returns its time. The clock of
// this process cannot be checked then.
const maxStep = 366 * 24 * time.Hour

// judgeClock rejects a clock of this process that is ahead of the server's, before
// it raises base b at revision rev.
func (d *Driver) judgeClock(ctx context.Context, b base, rev int64) error {
	server, ok := d.serverClock(ctx)
	switch {
	case ok:
		return driver.SameClock(d.options.Now(), server)
	case b.mod == 0:
		return nil
	}
	last := time.UnixMicro(interlock.EpochUnixMicro + b.value + rev)
	return driver.SameClock(d.options.Now(), last.Add(maxStep))
}

// plausible rejects a base whose tokens guards would reject. The process's own clock is enough to
// accept a base; only the server's clock can reject one.
func (d *Driver) plausible(ctx context.Context, b base, rev int64) error {
	err := driver.Plausible(b.value+rev, d.options.Now())
	if err == nil {
		return nil
	}
	if server, ok := d.serverClock(ctx); ok {
		return driver.Plausible(b.value+rev, server)
	}
	return err
}
