package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

// settings are the fields of goreleaser, version 2, that we use. It rejects unknown fields,
// and so does this test.
type settings struct {
	Version int    `json:"version"`
	Project string `json:"project_name"`
	Before  struct {
		Hooks []string `json:"hooks"`
	} `json:"before"`
	Builds []struct {
		ID        string   `json:"id"`
		Dir       string   `json:"dir"`
		Main      string   `json:"main"`
		Binary    string   `json:"binary"`
		Env       []string `json:"env"`
		OS        []string `json:"goos"`
		Arch      []string `json:"goarch"`
		Flags     []string `json:"flags"`
		LDFlags   []string `json:"ldflags"`
		Timestamp string   `json:"mod_timestamp"`
	} `json:"builds"`
	Archives []struct {
		Files []string `json:"files"`
	} `json:"archives"`
	Checksum struct {
		Name string `json:"name_template"`
	} `json:"checksum"`
	SBOMs []struct {
		Artifacts string `json:"artifacts"`
	} `json:"sboms"`
	Changelog struct {
		Disable bool `json:"disable"`
	} `json:"changelog"`
	Release struct {
		Draft      bool   `json:"draft"`
		Prerelease string `json:"prerelease"`
	} `json:"release"`
}

// deployed reads a file of deploy.
func deployed(t *testing.T, name string, into any) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "deploy", name))
	if err == nil && into != nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(text)
}

// TestRelease checks that the release builds the command for its platforms and packs existing
// files. The image has the same flags and an unprivileged user.
func TestRelease(t *testing.T) {
	var s settings
	deployed(t, "goreleaser.yaml", &s)
	if s.Version != 2 || s.Project != "interlock" || len(s.Builds) != 1 || !s.Changelog.Disable || !s.Release.Draft ||
		!slices.Contains([]string{"all", "source", "archive", "binary", "package"}, s.SBOMs[0].Artifacts) {
		t.Errorf("%+v", s)
	}
	for _, file := range s.Archives[0].Files {
		if file == "bin/man/*" && slices.Contains(s.Before.Hooks, "make man") {
			continue // TestReference writes them
		}
		if _, err := os.Stat(filepath.Join("..", file)); err != nil {
			t.Errorf("an archive has %v", err)
		}
	}
	b := s.Builds[0]
	if text, err := os.ReadFile(filepath.Join("..", b.Dir, b.Main, "main.go")); err != nil || !strings.Contains(string(text), "\npackage main\n") {
		t.Errorf("%s has no command: %v", b.Main, err)
	}
	if _, err := template.New("").Parse(b.Timestamp); err != nil {
		t.Error(err)
	}
	if !slices.Equal(b.OS, []string{"linux", "darwin"}) || !slices.Equal(b.Arch, []string{"amd64", "arm64"}) {
		t.Errorf("it is built for %q on %q", b.OS, b.Arch)
	}
	image := deployed(t, "Dockerfile", nil)
	for _, want := range []string{
		fmt.Sprintf("%s go build %s -ldflags='%s' -o /interlock ./%s\n", b.Env[0], b.Flags[0], strings.Join(b.LDFlags, " "), filepath.Join(b.Dir, b.Main)),
		"\nFROM gcr.io/distroless/static-debian12:nonroot\nCOPY --from=build /interlock /usr/local/bin/" + b.Binary + "\n",
		"\nENTRYPOINT [\"" + b.Binary + "\"]\n",
	} {
		if !strings.Contains(image, want) {
			t.Errorf("Dockerfile lacks %q", want)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "go.work"))
	_, version, _ := strings.Cut(string(text), "go ")
	version, _, _ = strings.Cut(version, "\n")
	if builder := "\nFROM golang:" + strings.TrimSuffix(version, ".0") + " AS build\n"; err != nil || !strings.Contains(image, builder) {
		t.Errorf("Dockerfile lacks %q, %v", builder, err)
	}
}

// TestCompose checks that the references of the compose file's services exist.
func TestCompose(t *testing.T) {
	var c struct {
		Services map[string]struct {
			Image       string                               `json:"image"`
			Build       struct{ Context, Dockerfile string } `json:"build"`
			Command     []string                             `json:"command"`
			Environment map[string]string                    `json:"environment"`
			Volumes     []string                             `json:"volumes"`
			Ports       []string                             `json:"ports"`
			Deploy      struct{ Replicas int }               `json:"deploy"`
			DependsOn   []string                             `json:"depends_on"`
			Drop        []string                             `json:"cap_drop"`
			Security    []string                             `json:"security_opt"`
			Restart     string                               `json:"restart"`
			Secrets     []struct {
				Source string `json:"source"`
				UID    string `json:"uid"`
				Mode   int    `json:"mode"`
			} `json:"secrets"`
		} `json:"services"`
		Secrets map[string]struct{ Environment string } `json:"secrets"`
		Volumes map[string]any                          `json:"volumes"`
	}
	deployed(t, "compose.yaml", &c)
	for name, s := range c.Services {
		if (s.Image == "") == (s.Build.Context == "") {
			t.Errorf("%s needs one of image and build", name)
		}
		if s.Build.Context != "" {
			if _, err := os.Stat(filepath.Join("..", "deploy", s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, other := range s.DependsOn {
			if c.Services[other].Image == "" {
				t.Errorf("%s depends on %s, which is no service", name, other)
			}
		}
		for _, v := range s.Volumes {
			v, _, _ = strings.Cut(v, ":")
			if _, ok := c.Volumes[v]; !ok {
				t.Errorf("%s mounts %s, which is no volume", name, v)
			}
		}
		for _, secret := range s.Secrets {
			if file := "--token-file=/run/secrets/" + secret.Source; c.Secrets[secret.Source].Environment == "" || !slices.Contains(s.Command, file) {
				t.Errorf("%s has the secret %s, which is none or is not used by %q", name, secret.Source, s.Command)
			}
		}
	}
	if backend := c.Services["coordinator"].Environment["INTERLOCK_BACKEND"]; !slices.Contains(c.Services["etcd"].Command, "--advertise-client-urls=http://"+strings.TrimPrefix(backend, "etcd://")) {
		t.Errorf("no service is at %s", backend)
	}
}
