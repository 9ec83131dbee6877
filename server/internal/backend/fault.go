package backend

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	client "github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/redis/rueidis"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/redis"
)

// Forbidden reports whether a backend refused our identity or our rights.
func Forbidden(err error) bool {
	code := codeOf(err)
	return Unauthenticated(err) ||
		code.etcd == codes.PermissionDenied || code.redis == "NOPERM" || code.postgres == "42501" || // insufficient privilege
		slices.Contains([]uint16{1044, 1142, 1143, 1227}, code.mysql) || // a database, a table, a column, a privilege
		code.consul == http.StatusForbidden || errors.Is(err, zk.ErrNoAuth) || apierrors.IsForbidden(err)
}

// Unauthenticated reports whether a backend refused our identity: the user, the password, a
// token or a certificate.
func Unauthenticated(err error) bool {
	code := codeOf(err)
	return code.etcd == codes.Unauthenticated || errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrUserEmpty) ||
		code.redis == "NOAUTH" || code.redis == "WRONGPASS" || strings.HasPrefix(code.postgres, "28") || // invalid authorization
		code.mysql == 1045 || code.mysql == 1698 || // 1698: an account without a password
		code.consul == http.StatusUnauthorized || errors.Is(err, zk.ErrAuthFailed) || apierrors.IsUnauthorized(err)
}

// A code is that of an error, in the field of the backend that sent it.
type code struct {
	etcd     codes.Code
	redis    string
	postgres string
	mysql    uint16
	consul   int
}

func codeOf(err error) (c code) {
	var etcdError rpctypes.EtcdError
	var redisError *rueidis.RedisError
	var sqlError interface{ SQLState() string }
	var mysqlError *client.MySQLError
	var consulError *consul.StatusError
	if errors.As(err, &etcdError) {
		c.etcd = etcdError.Code()
	} else if s, ok := status.FromError(err); ok {
		c.etcd = s.Code()
	}
	if errors.As(err, &redisError) {
		c.redis, _, _ = strings.Cut(redisError.Error(), " ")
	}
	if errors.As(err, &sqlError) {
		c.postgres = sqlError.SQLState()
	}
	if errors.As(err, &mysqlError) {
		c.mysql = mysqlError.Number
	}
	if errors.As(err, &consulError) {
		c.consul = consulError.Code
	}
	return c
}

// Answered reports whether a backend was reached but refuses for now: a Redis that is
// out of memory, loads its data or is a replica; a database that is starting or has no
// connection left.
func Answered(err error) bool {
	return errors.As(err, new(*rueidis.RedisError)) || errors.As(err, new(redis.Answer)) ||
		errors.As(err, new(interface{ SQLState() string })) || errors.As(err, new(*client.MySQLError))
}

// redisRefusals are reasons of a Redis that was reached but refuses for now, by the code of its answer.
var redisRefusals = map[string]string{
	"READONLY":   "it is a replica; name the master",
	"OOM":        "its memory is full (maxmemory)",
	"LOADING":    "it loads its data",
	"BUSY":       "a script of another client blocks it",
	"MISCONF":    "it cannot save its data to disk",
	"NOREPLICAS": "too few replicas are connected (min-replicas-to-write)",
	"MASTERDOWN": "it is a replica without a connection to its master",
}

// Refusal returns the reason of an error for which Answered returns true, or "".
func Refusal(err error) string {
	var text redis.Answer
	if reply := (*rueidis.RedisError)(nil); errors.As(err, &reply) {
		text = redis.Answer(reply.Error())
	} else {
		errors.As(err, &text)
	}
	code, _, _ := strings.Cut(string(text), " ")
	return redisRefusals[code]
}

// NoDatabase reports whether the server answers but lacks the named database.
func NoDatabase(err error) bool {
	code := codeOf(err)
	return code.postgres == "3D000" || code.mysql == 1049 || err != nil && strings.Contains(err.Error(), "DB index is out of range") // of Redis
}
