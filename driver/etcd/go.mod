module github.com/interlock-dev/interlock/driver/etcd

go 1.26

require (
	github.com/interlock-dev/interlock v0.0.0
	go.etcd.io/etcd/client/v3 v3.7.3
	go.uber.org/goleak v1.3.0
)

replace github.com/interlock-dev/interlock => ../..
