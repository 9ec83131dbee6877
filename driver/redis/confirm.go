package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

// replicasFor and fsyncFor bound the waits for replicas and for the disk.
const (
	replicasFor = 500 * time.Millisecond
	fsyncFor    = 2 * time.Second
)

// errUnconfirmed: a write was executed, and may be lost.
var errUnconfirmed = errors.New("the write is not confirmed")

// confirmedKey is written before WAIT and WAITAOF, which confirm the last write of
// their own connection: a script may find what another connection has written.
const confirmedKey = reserved + wholeTag + "}:confirmed"

// confirms reports whether writes are confirmed at all.
func (s Settings) confirms() bool { return s.Replicas > 0 || s.Fsync }

// confirmation returns the commands that follow writes in the same pipeline, if settings
// need them. In a cluster mark is false: a moving slot would refuse that write.
func confirmation(b rueidis.Builder, s Settings, mark bool) (all rueidis.Commands) {
	if mark {
		all = rueidis.Commands{b.Set().Key(confirmedKey).Value("").Build()}
	}
	if s.Replicas > 0 {
		all = append(all, b.Arbitrary("WAIT").Args(strconv.Itoa(s.Replicas), milliseconds(replicasFor)).Build())
	}
	if s.Fsync {
		// WAITAOF is a blocking command: its pipeline has a connection of its own.
		all = append(all, b.Waitaof().Numlocal(1).Numreplicas(0).Timeout(fsyncFor.Milliseconds()).Build())
	}
	return all
}

// confirmed returns nil if the answers to confirmation show that writes are safe.
func confirmed(s Settings, answers []rueidis.RedisResult) error {
	for _, a := range answers {
		if err := a.Error(); err != nil {
			return fmt.Errorf("%w: %w", errUnconfirmed, err)
		}
	}
	last := len(answers) - 1
	if s.Fsync {
		if synced, err := answers[last].AsIntSlice(); err != nil || len(synced) == 0 || synced[0] < 1 {
			return fmt.Errorf("%w: it was not on disk after %v", errUnconfirmed, fsyncFor)
		}
		last--
	}
	if s.Replicas > 0 {
		if n, err := answers[last].AsInt64(); err != nil || n < int64(s.Replicas) {
			return fmt.Errorf("%w: %d of %d replicas have received it", errUnconfirmed, n, s.Replicas)
		}
	}
	return nil
}

// sendConfirmed sends a pipeline that ends with a confirmation. It bounds a wait for
// the disk: the client closes a silent connection only while no blocking command is
// under way.
func sendConfirmed(ctx context.Context, client rueidis.Client, commands rueidis.Commands) ([]rueidis.RedisResult, error) {
	if !settingsOf(client).Fsync {
		return client.DoMulti(ctx, commands...), nil
	}
	bounded, end := context.WithTimeout(ctx, silence+fsyncFor)
	defer end()
	answers := client.DoMulti(undated{bounded}, commands...)
	if bounded.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: no answer within %v", errUnconfirmed, silence+fsyncFor)
	}
	return answers, nil
}

// unconfirmable returns why a server cannot confirm writes as [Settings] require, or
// nil. Whether there are enough replicas is known only when they are asked.
func (c *conn) unconfirmable(ctx context.Context, node rueidis.Client) (reason, err error) {
	s := settingsOf(c.client)
	if !s.Fsync {
		return nil, nil
	}
	if c.client.Mode() == rueidis.ClientModeCluster {
		return unsynced(errors.New("it is a Redis Cluster")), nil
	}
	_, err = do(ctx, c, request{op: "check WAITAOF"}, func(ctx context.Context) (rueidis.RedisMessage, error) {
		return node.Do(ctx, node.B().Arbitrary("WAITAOF").Args("1", "0", "1").Build()).ToMessage()
	})
	if err != nil && (interlock.Kind(err) != interlock.Definite || ctx.Err() != nil) {
		return nil, err
	}
	if err != nil {
		return unsynced(errors.Unwrap(err)), nil
	}
	config, err := c.config(ctx, node, "appendfsync")
	if err == nil && config["appendfsync"] == "no" {
		reason = unsynced(errors.New("appendfsync is no"))
	}
	return reason, err
}

func unsynced(why error) error {
	return fmt.Errorf("the server cannot confirm that writes are on disk (Settings.Fsync, ?fsync=true): %w", why)
}

// config reads parameters; it returns none if that is not permitted.
func (c *conn) config(ctx context.Context, node rueidis.Client, parameters ...string) (map[string]string, error) {
	found, err := do(ctx, c, request{op: "read configuration"}, func(ctx context.Context) (map[string]string, error) {
		return node.Do(ctx, node.B().ConfigGet().Parameter(parameters...).Build()).AsStrMap()
	})
	if err != nil && (interlock.Kind(err) != interlock.Definite || ctx.Err() != nil) {
		return nil, err
	}
	return found, nil
}
