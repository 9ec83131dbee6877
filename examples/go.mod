module github.com/interlock-dev/interlock/examples

go 1.26

require (
	github.com/interlock-dev/interlock v0.0.0
	github.com/interlock-dev/interlock/driver/etcd v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/redis/rueidis v1.0.79
	go.etcd.io/etcd/client/v3 v3.7.3
)

replace (
	github.com/interlock-dev/interlock => ../
	github.com/interlock-dev/interlock/driver/etcd => ../driver/etcd
)
