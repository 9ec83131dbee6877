// Tests against foreign clients of the same backends.
module github.com/interlock-dev/interlock/interop

go 1.26

require (
	github.com/interlock-dev/interlock v0.0.0
	github.com/interlock-dev/interlock/driver/etcd v0.0.0
	go.etcd.io/etcd/client/v3 v3.7.3
)

replace (
	github.com/interlock-dev/interlock => ../
	github.com/interlock-dev/interlock/driver/etcd => ../driver/etcd
)
