module github.com/interlock-dev/interlock/driver/kube

go 1.26.0

require github.com/interlock-dev/interlock v0.0.0

replace github.com/interlock-dev/interlock => ../..
