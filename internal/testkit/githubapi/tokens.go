package githubapi

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

var tokenPath = regexp.MustCompile(`^(?:/api/v3)?/app/installations/\d+/access_tokens$`)

const (
	tokenLife = time.Hour
	// longestJWT is how far ahead an App JWT may expire.
	longestJWT = 10 * time.Minute
	// hourlyCalls is the primary rate limit of an installation.
	hourlyCalls = 5000
)

// issued is an installation token of the double.
type issued struct {
	text    string
	app     App
	in      Installation
	grant   Grant
	made    time.Time
	expires time.Time
	usable  time.Time // until then GitHub answers 401
	calls   int
}

// Token is an installation token that is alive.
type Token struct {
	// Secret is the token itself.
	Secret string
	// Hashed is base64(SHA-256(token)), hashed_token in GitHub's audit log.
	Hashed  string
	App     string // client id
	Grant   Grant
	Made    time.Time
	Expires time.Time
}

// Live returns the tokens that are alive, oldest first.
func (s *Server) Live() []Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Token
	for _, one := range s.tokens {
		if s.clock().Before(one.expires) {
			all = append(all, Token{one.text, hashed(one.text), one.app.ClientID, one.grant.clone(), one.made, one.expires})
		}
	}
	slices.SortFunc(all, func(a, b Token) int { return a.Made.Compare(b.Made) })
	return all
}

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (g Grant) clone() Grant {
	g.Repositories, g.Permissions = slices.Clone(g.Repositories), maps.Clone(g.Permissions)
	return g
}

// covers reports whether a token may be used for a repository.
func (g Grant) covers(full string) bool {
	return slices.ContainsFunc(g.Repositories, func(one string) bool { return strings.EqualFold(one, full) })
}

var levels = map[string]int{"read": 1, "write": 2, "admin": 3}

// allows reports whether permissions include one at a level such as read.
func allows(permissions map[string]string, name, level string) bool {
	return levels[permissions[name]] >= levels[level] && levels[level] > 0
}

// refusal is an error answer of GitHub.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.status, r.message) }

var (
	errNotFound    = &refusal{404, "Not Found"}
	errCredentials = &refusal{401, "Bad credentials"}
	errNeedsAuth   = &refusal{401, "Requires authentication"}
	errForbidden   = &refusal{403, "Resource not accessible by integration"}
	errNoJWT       = &refusal{401, "A JSON web token could not be decoded"}
)

// credentials returns the token of a request, in any of the forms that GitHub's REST API accepts, or "".
func credentials(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token") {
		return strings.TrimSpace(text)
	}
	return ""
}

// tokenOf returns the installation token of a request. The caller holds the lock.
func (s *Server) tokenOf(text string) (*issued, error) {
	one, now := s.tokens[text], s.clock()
	switch {
	case text == "":
		return nil, errNeedsAuth
	case one == nil, !now.Before(one.expires), now.Before(one.usable):
		return nil, errCredentials
	}
	return one, nil
}

// appOf returns the App whose JWT a request has, as "Generating a JSON Web Token (JWT) for a GitHub App" says. The caller holds the
// lock.
func (s *Server) appOf(r *http.Request) (App, error) {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return App{}, errNoJWT
	}
	signed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return App{}, errNoJWT
	}
	var claims struct {
		Issuer   json.RawMessage `json:"iss"`
		IssuedAt json.RawMessage `json:"iat"`
		Expires  json.RawMessage `json:"exp"`
	}
	if err := json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &claims); err != nil {
		return App{}, errNoJWT
	}
	issuer := strings.Trim(string(claims.Issuer), `"`)
	if issuer == "" {
		return App{}, &refusal{401, "Missing 'issuer' claim ('iss') in assertion"}
	}
	found := slices.IndexFunc(s.apps, func(app App) bool { return app.ClientID == issuer || fmt.Sprint(app.ID) == issuer })
	if found < 0 {
		return App{}, &refusal{404, "Integration not found"}
	}
	app := s.apps[found]
	verified := slices.ContainsFunc(app.Keys, func(key *rsa.PublicKey) bool {
		_, err := signed.Verify(key)
		return err == nil
	})
	if !verified {
		return App{}, errNoJWT
	}
	return app, checkTimes(claims.IssuedAt, claims.Expires, s.clock())
}

func checkTimes(issuedAt, expires json.RawMessage, now time.Time) error {
	iat, err := strconv.ParseInt(string(issuedAt), 10, 64)
	if err != nil || time.Unix(iat, 0).After(now) {
		return &refusal{401, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"}
	}
	exp, err := strconv.ParseInt(string(expires), 10, 64)
	if err != nil || !time.Unix(exp, 0).After(now) {
		return &refusal{401, "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"}
	}
	if time.Unix(exp, 0).After(now.Add(longestJWT)) || exp-iat > int64(longestJWT/time.Second) {
		return &refusal{401, "'Expiration time' claim ('exp') is too far in the future"}
	}
	return nil
}

func (app App) installation(id int64) (Installation, error) {
	for _, in := range app.Installations {
		if in.ID == id {
			return in, nil
		}
	}
	return Installation{}, errNotFound
}

// granted returns the permissions of an installation with the one that GitHub adds.
func (in Installation) granted() map[string]string {
	all := map[string]string{"metadata": "read"}
	maps.Copy(all, in.Permissions)
	return all
}

func (in Installation) fullNames() []string {
	var all []string
	for _, name := range in.Repositories {
		all = append(all, in.Owner+"/"+name)
	}
	return all
}

// askedToken is the body of the call that makes a token.
type askedToken struct {
	Repositories  []string          `json:"repositories"`
	RepositoryIDs []int64           `json:"repository_ids"`
	Permissions   map[string]string `json:"permissions"`
}

// narrow returns what a token of an installation may do. Without repositories or permissions it may do all that the installation
// may. The caller holds the lock.
func (s *Server) narrow(in Installation, ask askedToken) (Grant, error) {
	const most = 500
	grant := Grant{Installation: in.ID, Selection: "selected", Life: tokenLife}
	unknown := &refusal{422, "There is at least one repository that does not exist or is not accessible to the parent installation."}
	if len(ask.Repositories)+len(ask.RepositoryIDs) > most {
		return Grant{}, &refusal{422, "Too many repositories."}
	}
	names := ask.Repositories
	for _, id := range ask.RepositoryIDs {
		name := ""
		for _, repo := range s.repos {
			if repo.id == id && strings.EqualFold(repo.owner, in.Owner) {
				name = repo.name
			}
		}
		names = append(names, name)
	}
	for _, name := range names {
		at := slices.IndexFunc(in.Repositories, func(one string) bool { return strings.EqualFold(one, name) })
		if at < 0 {
			return Grant{}, unknown
		}
		if full := in.Owner + "/" + in.Repositories[at]; !slices.Contains(grant.Repositories, full) {
			grant.Repositories = append(grant.Repositories, full)
		}
	}
	if len(names) == 0 {
		grant.Repositories = in.fullNames()
	}
	grant.Permissions = in.granted()
	if len(ask.Permissions) > 0 {
		grant.Permissions = map[string]string{"metadata": "read"}
		for name, level := range ask.Permissions {
			if !allows(in.granted(), name, level) {
				return Grant{}, &refusal{422, "The permissions requested are not granted to this installation."}
			}
			grant.Permissions[name] = level
		}
	}
	return grant, nil
}

// issue makes a token. The caller holds the lock.
func (s *Server) issue(app App, in Installation, grant Grant, b Behaviour) (*issued, error) {
	if b.OtherGrant != nil {
		grant = grant.clone()
		b.OtherGrant(&grant)
	}
	text, err := newToken(app, b.Stateless)
	if err != nil {
		return nil, err
	}
	now := s.clock()
	one := &issued{
		text: text, app: app, in: in, grant: grant, made: now,
		expires: now.Add(grant.Life).UTC().Truncate(time.Second), usable: now.Add(b.Settling),
	}
	s.tokens[text] = one
	return one, nil
}

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newToken returns a token of 40 characters, or one of the newer format, which has the App's id and a JWT.
func newToken(app App, stateless bool) (string, error) {
	random := make([]byte, 36)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	for i, b := range random {
		random[i] = alphabet[int(b)%len(alphabet)]
	}
	if !stateless {
		return "ghs_" + string(random), nil
	}
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf("ghs_%d_%s.%s.%s", app.ID, part(`{"alg":"ES256","typ":"JWT"}`),
		part(`{"jti":"`+string(random)+`","iss":"github.com"}`), part(strings.Repeat(string(random), 2))), nil
}
