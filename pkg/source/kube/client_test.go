package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: secret}}]
`

// outsidePod makes the test independent of where it runs.
func outsidePod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
}

func TestClientConfig(t *testing.T) {
	outsidePod(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	given := &rest.Config{Host: "https://192.0.2.9"}
	for _, c := range []struct {
		description string
		options     Options
		host, token string
	}{
		{"kubeconfig", Options{Kubeconfig: file}, "https://192.0.2.1:6443", "secret"},
		{"master goes before the kubeconfig's server", Options{Kubeconfig: file, Master: "https://192.0.2.2:443"}, "https://192.0.2.2:443", "secret"},
		{"master alone", Options{Master: "http://127.0.0.1:8001"}, "http://127.0.0.1:8001", ""},
		{"a ready config goes before all", Options{Config: given, Kubeconfig: file, Master: "x"}, "https://192.0.2.9", ""},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := clientConfig(c.options)
			must(t, err)
			if got.Host != c.host || got.BearerToken != c.token {
				t.Errorf("host %q, token %q, want %q, %q", got.Host, got.BearerToken, c.host, c.token)
			}
			if !strings.HasPrefix(got.UserAgent, "beeline-agent/") {
				t.Errorf("user agent %q", got.UserAgent)
			}
		})
	}
	if given.UserAgent != "" {
		t.Error("the caller's config was changed")
	}
}

// TestClientSettings sets limits and content types.
func TestClientSettings(t *testing.T) {
	for _, c := range []struct {
		options Options
		want    rest.Config
	}{
		{Options{}, rest.Config{ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		}}},
		{Options{QPS: 7, Burst: 9, ContentType: "application/json", AcceptContentTypes: "application/json"}, rest.Config{
			QPS: 7, Burst: 9, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
		}},
	} {
		c.options.Config = &rest.Config{Host: "https://192.0.2.9"}
		got, err := clientConfig(c.options)
		must(t, err)
		if got.QPS != c.want.QPS || got.Burst != c.want.Burst || got.ContentType != c.want.ContentType || got.AcceptContentTypes != c.want.AcceptContentTypes {
			t.Errorf("%+v leads to %v, %v, %q, %q", c.options, got.QPS, got.Burst, got.ContentType, got.AcceptContentTypes)
		}
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	outsidePod(t)
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		description string
		options     Options
		want        string
	}{
		{"no way to the server", Options{NodeName: "n", Sink: &updates{}}, "give a kubeconfig or a master URL"},
		{"no node name", Options{Master: "http://127.0.0.1:1", Sink: &updates{}}, "node name"},
		{"no sink", Options{Master: "http://127.0.0.1:1", NodeName: "n"}, "sink"},
		{"no such kubeconfig", Options{Kubeconfig: "/nonexistent/kc", NodeName: "n", Sink: &updates{}}, "/nonexistent/kc"},
		{"empty kubeconfig", Options{Kubeconfig: empty, NodeName: "n", Sink: &updates{}}, empty},
	} {
		t.Run(c.description, func(t *testing.T) {
			if _, err := New(c.options); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
