package interop

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// chart is the directory of the chart. chartValues are its required values, and one entry of
// every list.
const chart = "../deploy/helm"

func chartValues() map[string]any {
	return map[string]any{
		"image":         "registry.example/interlock:1",
		"allow":         []any{"http://stock.shop.svc:8080/", "http://payments.shop.svc:8080/"},
		"allowNetworks": []any{"10.0.0.0/8"},
		"args":          []any{"--keep=72h"},
	}
}

// render renders the chart as an install does, by the name of the template.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	loaded, err := loader.Load(chart)
	testbed.OK(t, err)
	all, err := chartutil.ToRenderValues(loaded, values, common.ReleaseOptions{Name: "shop", Namespace: "default", IsInstall: true}, nil)
	testbed.OK(t, err)
	return engine.Render(loaded, all)
}

// TestChart checks that Helm's lint passes, and that a real API server accepts every rendered
// field.
func TestChart(t *testing.T) {
	t.Parallel()
	for _, message := range lint.RunAll(chart, chartValues(), "default").Messages {
		if message.Severity > 1 { // lint recommends an icon
			t.Error(message)
		}
	}
	files, err := render(t, chartValues())
	testbed.OK(t, err)
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	b := &kubeBed{T: t, kube: testbed.SharedKube(t)}
	client := b.dial(b.kube.Addr())
	created, dry := 0, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}} // validated, not stored
	for name, text := range files {
		if strings.TrimSpace(text) == "" {
			continue
		}
		object, _, err := strict.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		switch object := object.(type) {
		case *appsv1.Deployment:
			args := object.Spec.Template.Spec.Containers[0].Args
			for _, want := range []string{"--allow=http://payments.shop.svc:8080/", "--allow-network=10.0.0.0/8", "--keep=72h", "--host=shop.default.svc"} {
				if !slices.Contains(args, want) {
					t.Errorf("%s is not among the arguments %q", want, args)
				}
			}
			_, err = client.AppsV1().Deployments("default").Create(t.Context(), object, dry)
		case *corev1.Service:
			_, err = client.CoreV1().Services("default").Create(t.Context(), object, dry)
		default:
			t.Errorf("%s: %T", name, object)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		created++
	}
	if created != 2 {
		t.Errorf("%d objects, want a Deployment and a Service", created)
	}
}

// TestChartNeedsValues checks that an install reports missing required values.
func TestChartNeedsValues(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"image", "allow"} {
		values := chartValues()
		delete(values, name)
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), name+" is required") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
