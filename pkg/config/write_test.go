package config_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/beeline-lb/beeline/pkg/config"
)

// TestEncode: what a configuration is encoded as is read back as the same.
func TestEncode(t *testing.T) {
	want := config.Default()
	want.Beeline.Manifests, want.Beeline.XDP = "/etc/beeline", "native"
	want.Beeline.ServiceClusterIPRanges = []string{"10.96.0.0/16"}
	want.KubeProxy.HostnameOverride = "node-a"
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Decode("noted", text)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(got.Configz(), want.Configz()) {
		t.Errorf("read back as %+v, want %+v", got.Configz(), want.Configz())
	}
	if _, err := config.Decode("noted", []byte("kind: Other\n")); err == nil {
		t.Error("another kind is a configuration")
	}
}
