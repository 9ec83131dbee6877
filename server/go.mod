module github.com/interlock-dev/interlock/server

go 1.26

require (
	github.com/interlock-dev/interlock v0.0.0
	github.com/interlock-dev/interlock/driver/etcd v0.0.0
	github.com/spf13/cobra v1.10.2
	go.etcd.io/etcd/client/v3 v3.7.3
	go.etcd.io/etcd/server/v3 v3.7.3
)

replace (
	github.com/interlock-dev/interlock => ../
	github.com/interlock-dev/interlock/driver/etcd => ../driver/etcd
)
