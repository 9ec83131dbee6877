// Command kube-apiserver is the Kubernetes API server. It is built from its module, because that
// needs no other download. The tests start it on an etcd of their own. It takes the flags of the
// original.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
