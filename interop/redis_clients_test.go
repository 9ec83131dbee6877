package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// foreignRedis is a foreign client. try acquires a name or fails, without waiting;
// release reports whether the client still held it.
type foreignRedis interface {
	try(name string, ttl time.Duration) (release func() (bool, error), err error)
}

// errTaken reports that another client has the lock.
var errTaken = errors.New("taken")

// foreignClients are the clients that lock one key on one server.
var foreignClients = map[string]func(t *testing.T, addr string) foreignRedis{
	"redsync":   func(t *testing.T, addr string) foreignRedis { return newRedsync(t, addr) },
	"redislock": newRedislock,
	"redis-py":  newRedisPy,
}

func goRedis(t *testing.T, addr string) *goredislib.Client {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// redsyncClient is redsync on one server or several.
type redsyncClient struct{ *redsync.Redsync }

func newRedsync(t *testing.T, addrs ...string) redsyncClient {
	var pools []redsyncredis.Pool
	for _, addr := range addrs {
		pools = append(pools, goredis.NewPool(goRedis(t, addr)))
	}
	return redsyncClient{redsync.New(pools...)}
}

func (c redsyncClient) try(name string, ttl time.Duration) (func() (bool, error), error) {
	// Its default time limit for each node is a twentieth of the TTL, too short here.
	m := c.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1), redsync.WithTimeoutFactor(0.3))
	var taken *redsync.ErrTaken
	err := m.TryLock()
	if errors.As(err, &taken) {
		return nil, errTaken
	}
	return func() (bool, error) {
		ok, err := m.Unlock()
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
			return false, nil
		}
		return ok, err
	}, err
}

type redislockClient struct{ *redislock.Client }

func newRedislock(t *testing.T, addr string) foreignRedis {
	return redislockClient{redislock.New(goRedis(t, addr))}
}

func (c redislockClient) try(name string, ttl time.Duration) (func() (bool, error), error) {
	l, err := c.Obtain(context.Background(), name, ttl, &redislock.Options{Metadata: "of the test"})
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errTaken
	}
	return func() (bool, error) {
		err := l.Release(context.Background())
		if errors.Is(err, redislock.ErrLockNotHeld) {
			return false, nil
		}
		return err == nil, err
	}, err
}

// redisPy talks to a Python process.
type redisPy struct {
	in  io.Writer
	out *bufio.Scanner
}

func newRedisPy(t *testing.T, addr string) foreignRedis {
	library := redisPyLibrary(t)
	_, port, _ := strings.Cut(addr, ":")
	python := exec.Command("python3", "-I", "-c",
		"import runpy, sys; sys.path.insert(0, sys.argv[1]); del sys.argv[1]; runpy.run_path(sys.argv.pop(1), run_name='__main__')",
		library, "testdata/redis/redis-py/lock_client.py", port)
	in, err := python.StdinPipe()
	testbed.OK(t, err)
	out, err := python.StdoutPipe()
	testbed.OK(t, err)
	var complaints strings.Builder
	python.Stderr = &complaints
	testbed.OK(t, python.Start())
	t.Cleanup(func() {
		in.Close()
		if err := python.Wait(); err != nil {
			t.Errorf("redis-py: %v\n%s", err, complaints.String())
		}
	})
	return &redisPy{in, bufio.NewScanner(out)}
}

// redisPyLibrary returns the directory to which scripts/cache.sh installs it.
func redisPyLibrary(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/redis/redis-py/requirements.txt")
	testbed.OK(t, err)
	_, version, _ := strings.Cut(strings.TrimSpace(string(text)), "==")
	cache, err := os.UserCacheDir()
	dir := filepath.Join(cache, "interlock", "redis-py-"+version)
	if err == nil {
		_, err = os.Stat(dir)
	}
	switch {
	case err == nil:
		return dir
	case slices.Contains(strings.Split(os.Getenv("INTERLOCK_REQUIRE"), ","), "redis-py"):
		t.Fatalf("redis-py is required by INTERLOCK_REQUIRE and missing (%v): run scripts/cache.sh", err)
	}
	t.Skipf("redis-py is missing (%v): run scripts/cache.sh", err)
	return ""
}

func (p *redisPy) ask(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return "", err
	}
	if !p.out.Scan() {
		return "", fmt.Errorf("it ended: %w", p.out.Err())
	}
	return p.out.Text(), nil
}

func (p *redisPy) try(name string, ttl time.Duration) (func() (bool, error), error) {
	answer, err := p.ask("acquire %s %f", name, ttl.Seconds())
	if err == nil && answer != "yes" {
		err = errTaken
	}
	return func() (bool, error) {
		answer, err := p.ask("release %s", name)
		return answer == "released", err
	}, err
}

// awaitForeign tries until it acquires the name.
func awaitForeign(t *testing.T, c foreignRedis, name string, ttl time.Duration) (release func() (bool, error)) {
	t.Helper()
	testbed.Eventually(t, "the foreign client gets it", patience, func() bool {
		r, err := c.try(name, ttl)
		if err != nil && !errors.Is(err, errTaken) {
			t.Fatal(err)
		}
		release = r
		return err == nil
	})
	return release
}
