package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FormerLayouts are the last commits before maps got other layouts, by the name of such a map.
var FormerLayouts = map[string]string{
	"bl_service_stat": "52816eae5d11f0c9d23135acdb28f3e9d2d26c8a",
}

// ErrNoHistory says that the repository lacks the commit of a former version.
var ErrNoHistory = errors.New("not in the history of this checkout")

// FormerAgent returns the path of beeline-agent as it was at a commit, built when the cache does
// not hold it. The error is [ErrNoHistory] where the commit is missing, as in a shallow clone.
func FormerAgent(ctx context.Context, commit string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return cached(root, "beeline-agent", commit[:12], func(path string) error { return buildFormer(ctx, root, commit, path) })
}

func buildFormer(ctx context.Context, root, commit, path string) error {
	if err := git(ctx, root, "cat-file", "-e", commit+"^{commit}"); err != nil {
		return fmt.Errorf("commit %s is %w: %w", commit, ErrNoHistory, err)
	}
	sources, err := os.MkdirTemp("", "beeline-former-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(sources)
	archive := filepath.Join(sources, "sources.tar")
	if err := git(ctx, root, "archive", "-o", archive, commit); err != nil {
		return err
	}
	if err := run(exec.CommandContext(ctx, "tar", "-xf", archive, "-C", sources)); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path+".building", "./cmd/beeline-agent")
	build.Dir = sources
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if err := run(build); err != nil {
		return err
	}
	return os.Rename(path+".building", path)
}

// git runs git in a repository, which may be another user's.
func git(ctx context.Context, root string, args ...string) error {
	return run(exec.CommandContext(ctx, "git", append([]string{"-C", root, "-c", "safe.directory=" + root}, args...)...))
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
