package docs_test

import (
	"bytes"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/pages"
)

var (
	inspectCall  = regexp.MustCompile(`(?:^|[ /])beeline ([a-z]+.*)`)
	pluginCall   = regexp.MustCompile(`^kubectl beeline\b`)
	agentCall    = regexp.MustCompile(`(?:^|[ /])beeline-agent (.*)`)
	makeCall     = regexp.MustCompile(`^make ([a-z][a-z0-9-]*)`)
	makeTarget   = regexp.MustCompile(`(?m)^([a-z][a-z0-9 -]*):`)
	helpCommands = regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`)
	commandWord  = regexp.MustCompile(`^[a-z]+$`)
)

// runner is cli.Run or cli.RunPlugin.
type runner func(context.Context, cli.Env, ...string) int

// help returns what beeline prints about a command.
func (run runner) help(t *testing.T, words ...string) string {
	t.Helper()
	var out bytes.Buffer
	if code := run(t.Context(), cli.Env{Out: &out, Err: &out}, append(words, "--help")...); code != 0 {
		t.Errorf("beeline %s --help: exit status %d", strings.Join(words, " "), code)
	}
	return out.String()
}

// checkInspect checks that beeline, or kubectl's plugin, has the command, with these flags.
func (run runner) checkInspect(t *testing.T, path, call string) {
	t.Helper()
	var words []string
	text := run.help(t)
	for _, word := range strings.Fields(call) {
		names := helpCommands.FindAllStringSubmatch(text, -1)
		if !commandWord.MatchString(word) || len(names) == 0 {
			break
		}
		if !slices.ContainsFunc(names, func(m []string) bool { return m[1] == word }) {
			t.Errorf("%s: beeline %s has no command %q", path, strings.Join(words, " "), word)
			return
		}
		words = append(words, word)
		text = run.help(t, words...)
	}
	for _, flag := range flagNamed.FindAllString(call, -1) {
		if !strings.Contains(text, flag+" ") {
			t.Errorf("%s: beeline %s has no flag %s", path, strings.Join(words, " "), flag)
		}
	}
}

// kubeletsAccount is an agent's kubeconfig that is the kubelet's.
var kubeletsAccount = regexp.MustCompile(`kubeconfig[=: ]+\S*kubelet\.conf`)

// TestKubeconfig: no page or help gives the agent the kubelet's account, which may not list EndpointSlices.
func TestKubeconfig(t *testing.T) {
	texts := pages.All(t)
	maps.Copy(texts, sources(t, "cmd/beeline-agent", ".go"))
	for path, text := range texts {
		if m := kubeletsAccount.FindString(text); m != "" {
			t.Errorf("%s: %s: the API server does not let a kubelet list EndpointSlices", path, m)
		}
	}
}

// TestCommands: the commands that documents show exist, with their flags: those of beeline and
// beeline-agent, and the targets of make.
func TestCommands(t *testing.T) {
	flags := agentFlags(t)
	targets := make(map[string]bool)
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		for name := range strings.FieldsSeq(m[1]) {
			targets[name] = true
		}
	}
	found := make(map[string]int)
	for path, text := range pages.All(t) {
		for _, command := range pages.Commands(text) {
			if m := inspectCall.FindStringSubmatch(command); m != nil && !strings.HasPrefix(command, "helm ") {
				run, program := runner(cli.Run), "beeline"
				if pluginCall.MatchString(command) {
					run, program = cli.RunPlugin, "kubectl beeline"
				}
				found[program]++
				run.checkInspect(t, path, m[1])
			}
			if m := agentCall.FindStringSubmatch(command); m != nil {
				found["agent"]++
				for _, flag := range flagNamed.FindAllString(m[1], -1) {
					if !flags[flag] && flag != "--version" {
						t.Errorf("%s: beeline-agent has no flag %s", path, flag)
					}
				}
			}
			if m := makeCall.FindStringSubmatch(command); m != nil {
				found["make"]++
				if !targets[m[1]] {
					t.Errorf("%s: make has no target %s", path, m[1])
				}
			}
		}
	}
	if found["beeline"] < 50 || found["kubectl beeline"] < 5 || found["agent"] < 5 || found["make"] < 20 {
		t.Errorf("found too few commands: %v", found)
	}
}
