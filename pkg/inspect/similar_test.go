package inspect

import (
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestSimilar offers what a slip of the finger meant, and not everything.
func TestSimilar(t *testing.T) {
	names := []model.Name{
		{Namespace: "default", Name: "kubernetes"}, {Namespace: "shop", Name: "cart"},
		{Namespace: "shop", Name: "cart-db"}, {Namespace: "shop", Name: "web"},
		{Namespace: "test", Name: "web"},
	}
	for _, c := range []struct {
		want string
		like []string
	}{
		{"wbe", []string{"shop/web"}},
		{"web2", []string{"shop/web"}},
		{"cart", []string{"shop/cart", "shop/cart-db"}},
		{"cart-", []string{"shop/cart", "shop/cart-db"}},
		{"kubernetes", []string{"default/kubernetes"}},
		{"payments", nil},
		{"", nil},
	} {
		var like []string
		for _, n := range similar(model.Name{Namespace: "shop", Name: c.want}, names) {
			like = append(like, n.String())
		}
		if !slices.Equal(like, c.like) {
			t.Errorf("like shop/%s are %v, want %v", c.want, like, c.like)
		}
	}
	many := make([]model.Name, 20)
	for i := range many {
		many[i] = model.Name{Namespace: string(rune('a' + i)), Name: "web"}
	}
	if n := len(similar(model.Name{Namespace: "shop", Name: "web"}, many)); n != maxSimilar {
		t.Errorf("%d are offered, want %d", n, maxSimilar)
	}
}

// TestDistance counts edits.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"web", "web", 0}, {"web", "wbe", 2},
		{"kitten", "sitting", 3}, {"flaw", "lawn", 2},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance of %q and %q is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
