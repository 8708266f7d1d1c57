package github

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// maxRepositories is how many repositories GitHub lets a token name.
	maxRepositories = 500
	// longestToken bounds a token, in bytes. GitHub's tokens have 40 to 520.
	longestToken = 4096
	// tolerance is how far the clocks of GitHub and of this machine may differ.
	tolerance = 2 * time.Minute
)

// check returns the names of the repositories without their owner, as GitHub wants them.
func (g Grant) check() ([]string, error) {
	switch {
	case g.Installation <= 0:
		return nil, errors.New("the installation has no id")
	case len(g.Repositories) == 0:
		return nil, errors.New("no repository is named, which would mean all of them")
	case len(g.Repositories) > maxRepositories:
		return nil, fmt.Errorf("more than %d repositories are named", maxRepositories)
	case len(g.Permissions) == 0:
		return nil, errors.New("no permission is named, which would mean all of them")
	}
	for name, access := range g.Permissions {
		if name == "" || access != "read" && access != "write" && access != "admin" {
			return nil, fmt.Errorf("the access %q to %q is not read, write or admin", access, name)
		}
	}
	var names []string
	seen := map[string]bool{}
	first := ""
	for _, full := range g.Repositories {
		owner, name, ok := strings.Cut(full, "/")
		if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("the repository %q is not owner/name", full)
		}
		if first == "" {
			first = owner
		}
		if !strings.EqualFold(owner, first) {
			return nil, fmt.Errorf("the repositories have two owners, %q and %q", first, owner)
		}
		if seen[strings.ToLower(full)] {
			return nil, fmt.Errorf("the repository %q is named twice", full)
		}
		seen[strings.ToLower(full)] = true
		names = append(names, name)
	}
	return names, nil
}

// readToken reads GitHub's answer of a new token, and compares the token with what is wanted. If the answer has a token that is not
// the one that is wanted, the error has it.
func readToken(body []byte, want Grant, now time.Time) (Token, error) {
	// The token is read by itself first, because it has to be ended even if GitHub says the rest in a way that is not understood.
	var made struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(body, &made); err != nil || !printable(made.Token) {
		return Token{}, &LostError{Status: 201, cause: errNotUnderstood}
	}
	token := Token{secret.New(made.Token), now.Add(MaxLife)}
	other := func(difference string) (Token, error) { return token, &GrantError{token, difference} }
	var got struct {
		Expires      time.Time         `json:"expires_at"`
		Selection    string            `json:"repository_selection"`
		Permissions  map[string]string `json:"permissions"`
		Repositories []struct {
			FullName string `json:"full_name"`
		} `json:"repositories"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return other("what it may do was not understood")
	}
	if got.Expires.After(now) {
		token.Expires = got.Expires
	}
	var names []string
	for _, repository := range got.Repositories {
		names = append(names, repository.FullName)
	}
	switch {
	case got.Selection != "selected":
		return other("it is not limited to selected repositories")
	case !sameNames(names, want.Repositories):
		return other(fmt.Sprintf("it is for the repositories %s, not %s", list(names), list(want.Repositories)))
	case !samePermissions(got.Permissions, want.Permissions):
		return other(fmt.Sprintf("it has the permissions %s, not %s", list(pairs(got.Permissions)), list(pairs(want.Permissions))))
	case !got.Expires.After(now):
		return other("it has no time of expiry in the future")
	case got.Expires.After(now.Add(MaxLife + tolerance)):
		return other("it lives longer than an hour, by the clock of this machine")
	}
	return token, nil
}

func printable(token string) bool {
	return token != "" && len(token) <= longestToken && !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}

// sameNames reports whether two lists have the same full names of repositories, in any order. GitHub ignores their case.
func sameNames(a, b []string) bool {
	sorted := func(names []string) []string {
		var low []string
		for _, name := range names {
			low = append(low, strings.ToLower(name))
		}
		slices.Sort(low)
		return low
	}
	return slices.Equal(sorted(a), sorted(b))
}

// samePermissions reports whether a token has the permissions that are wanted. GitHub adds "metadata: read" to every token by itself.
func samePermissions(got, want map[string]string) bool {
	if _, asked := want["metadata"]; !asked && got["metadata"] == "read" {
		got = maps.Clone(got)
		delete(got, "metadata")
	}
	return maps.Equal(got, want)
}

func pairs(permissions map[string]string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(permissions)) {
		all = append(all, name+":"+permissions[name])
	}
	return all
}

// list shows names that GitHub sent, clipped.
func list(names []string) string {
	const most = 5
	if len(names) == 0 {
		return "(none)"
	}
	var shown []string
	for _, name := range names[:min(len(names), most)] {
		shown = append(shown, clipName(name))
	}
	if len(names) > most {
		shown = append(shown, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(shown, ", ")
}
