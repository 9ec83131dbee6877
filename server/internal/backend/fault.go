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
	return forbiddenByEtcd(err) || forbiddenByRedis(err) || forbiddenByPostgres(err) || forbiddenByMySQL(err) ||
		errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrAuthFailed) ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || forbiddenByConsul(err)
}

func forbiddenByConsul(err error) bool {
	var answer *consul.StatusError
	return errors.As(err, &answer) && (answer.Code == http.StatusForbidden || answer.Code == http.StatusUnauthorized)
}

// forbiddenByMySQL reports error numbers about rights: a database, a user, a table, a
// column, a privilege, and an account without a password.
func forbiddenByMySQL(err error) bool {
	var reply *client.MySQLError
	return errors.As(err, &reply) && slices.Contains([]uint16{1044, 1045, 1142, 1143, 1227, 1698}, reply.Number)
}

func forbiddenByEtcd(err error) bool {
	if errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrUserEmpty) {
		return true
	}
	var named rpctypes.EtcdError
	var code codes.Code
	if errors.As(err, &named) {
		code = named.Code()
	} else if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

func forbiddenByRedis(err error) bool {
	var reply *rueidis.RedisError
	if !errors.As(err, &reply) {
		return false
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return word == "NOAUTH" || word == "WRONGPASS" || word == "NOPERM"
}

func forbiddenByPostgres(err error) bool {
	var sql interface{ SQLState() string }
	if !errors.As(err, &sql) {
		return false
	}
	// Class 28: invalid authorization; 42501: insufficient privilege.
	return strings.HasPrefix(sql.SQLState(), "28") || sql.SQLState() == "42501"
}

// Answered reports whether a backend was reached but refuses for now: a Redis that is
// out of memory, loads its data or is a replica; a database that is starting or has no
// connection left.
func Answered(err error) bool {
	return errors.As(err, new(*rueidis.RedisError)) || errors.As(err, new(redis.Answer)) ||
		errors.As(err, new(interface{ SQLState() string })) || errors.As(err, new(*client.MySQLError))
}

// NoDatabase reports whether the server answers but lacks the named database.
func NoDatabase(err error) bool {
	var postgres interface{ SQLState() string }
	var mysql *client.MySQLError
	return errors.As(err, &postgres) && postgres.SQLState() == "3D000" || errors.As(err, &mysql) && mysql.Number == 1049
}
