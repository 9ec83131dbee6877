package cli

import (
	"io"
	"log"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// quietLibraries disables the logs of libraries: the user gets their errors.
func quietLibraries() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	log.SetOutput(io.Discard)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Example: `  interlock version
  interlock version -o json          with the commit it was built from`,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			return a.print(v, versionText(v))
		},
	}
}

func versionText(v version) text {
	return line("interlock %s (%s, etcd %s)\n", v.Version, v.Go, v.Etcd)
}

type version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	Etcd    string `json:"etcd"`
}

func buildVersion() version {
	v := version{Version: "(devel)", Go: runtime.Version(), Etcd: etcd.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
