package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	// exchangeWithin bounds an exchange, which is one call or two.
	exchangeWithin = 20 * time.Second
	// exchangeFailedFor is how long a failed exchange is repeated without another token of Brevet, so that a sandbox that retries in
	// a loop does not fill the record. An overloaded system may ask for more time.
	exchangeFailedFor    = 5 * time.Second
	maxExchangeFailedFor = time.Minute
	// minResultLife is the shortest life of a result that the gateway uses: each result costs a token of Brevet. maxResultLife is the
	// longest one that is believable; Microsoft Entra gives up to 28 hours.
	minResultLife = 5 * time.Second
	maxResultLife = 48 * time.Hour
	// awsSessionLife is how long AWS keys live: the shortest time that AWS accepts.
	awsSessionLife = 15 * time.Minute
	// maxGoogleLife is the longest life that Google gives a token for a service account.
	maxGoogleLife = time.Hour
	// lingers is how long an expired result without a call in progress stays in memory.
	lingers = 5 * time.Second
	// maxTold is how much of another system's error is logged, in bytes.
	maxTold = 300

	grantTokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange" //nolint:gosec // a name, not a secret
	grantJWTBearer     = "urn:ietf:params:oauth:grant-type:jwt-bearer"     //nolint:gosec // a name, not a secret
	typeJWT            = "urn:ietf:params:oauth:token-type:jwt"
	typeAccessToken    = "urn:ietf:params:oauth:token-type:access_token" //nolint:gosec // a name, not a secret
	assertionJWT       = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	googlePlatform     = "https://www.googleapis.com/auth/cloud-platform"

	// Anthropic accepts an exchange with both values of anthropic-beta, and a call with its result only with the first one.
	anthropicBeta           = "Anthropic-Beta"
	anthropicOAuth          = "oauth-2025-04-20"
	anthropicExchangeHeader = anthropicOAuth + ",oidc-federation-2026-04-01"
)

// result is what another system gives for a token: a bearer token, or an AWS key.
type result struct {
	value   secret.Text
	id      string      // of an AWS key
	session secret.Text // of an AWS key
	ends    time.Time
}

// exchange is one exchange of a token.
type exchange struct {
	gateway *Gateway
	token   *client.Token
	openapi.Exchange
	until  time.Time     // end of the issuance
	hidden []secret.Text // what no log may contain
}

// sameExchange reports whether a token is for the exchange that its rule was read with. There, role and account may be templates.
func sameExchange(token, rule openapi.Exchange) bool {
	if strings.Contains(rule.Role, "{") {
		rule.Role = token.Role
	}
	if strings.Contains(rule.ServiceAccount, "{") {
		rule.ServiceAccount = token.ServiceAccount
	}
	return reflect.DeepEqual(token, rule)
}

// newExchanged exchanges a token at the other system and returns the result as a credential. It forgets the token. rule is the
// exchange that the matching rule was read with.
func (g *Gateway) newExchanged(ctx context.Context, token *client.Token, m match, began time.Time) (*held, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeWithin)
	defer cancel()
	as := token.Exchange.As
	if !sameExchange(token.Exchange, m.scope.Exchange) { // the catalogue changed after the rules were read
		return nil, &refusal{code: codeUnavailable, explanation: "the scope has just changed", after: rulesKept}
	}
	h := g.hold(token, began)
	e := &exchange{gateway: g, token: token, Exchange: token.Exchange, until: h.ends}
	jwt := token.Secret.Reveal()
	e.hidden = []secret.Text{token.Secret, secret.New(jwt[strings.LastIndexByte(jwt, '.')+1:])}
	way, ok := exchanges[as]
	fits := ok && strings.EqualFold(token.Type, "Bearer") && (as == openapi.ExchangeAWS) == (m.route.Send.As == scopes.SendAWS)
	var got result
	var err error
	if fits {
		got, err = way(e, ctx)
	}
	if err != nil {
		h.end(errEnded)
		return nil, err
	}
	if fits && as == openapi.ExchangeAWS {
		fits = h.sign(map[string]any{"access_key": got.id, "secret_key": got.value.Reveal(), "session_token": got.session.Reveal()})
	} else if fits {
		fits = h.showText(got.value.Reveal(), m.route.Send)
	}
	if !fits {
		h.end(errEnded)
		return nil, &refusal{code: codeUnfit, scopes: []string{token.Scope}}
	}
	if as == openapi.ExchangeAnthropic {
		h.beta = anthropicOAuth
	}
	h.renew = usableUntil(g.cfg.Now(), got.ends.Sub(g.cfg.Now()))
	return h, nil
}

// exchanges are the ways to exchange a token.
var exchanges = map[openapi.ExchangeAs]func(*exchange, context.Context) (result, error){
	openapi.ExchangeAWS:       (*exchange).aws,
	openapi.ExchangeGoogle:    (*exchange).google,
	openapi.ExchangeAzure:     (*exchange).azure,
	openapi.ExchangeAnthropic: (*exchange).anthropic,
	openapi.ExchangeOpenAI:    (*exchange).openai,
}

// assumedRole is the answer of AssumeRoleWithWebIdentity, version 2011-06-15.
type assumedRole struct {
	XMLName xml.Name `xml:"AssumeRoleWithWebIdentityResponse"`
	Keys    struct {
		ID         string    `xml:"AccessKeyId"`
		Secret     string    `xml:"SecretAccessKey"`
		Session    string    `xml:"SessionToken"`
		Expiration time.Time `xml:"Expiration"`
	} `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	Arn string `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>Arn"`
}

// aws assumes a role. The session has the name of the issuance, so that CloudTrail and Brevet's record can be joined.
func (e *exchange) aws(ctx context.Context) (result, error) {
	body, err := e.form(ctx, e.URL+"/", url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {e.Role}, "RoleSessionName": {e.token.ID},
		"WebIdentityToken": {e.token.Secret.Reveal()}, "DurationSeconds": {wholeSeconds(awsSessionLife)},
	})
	if err != nil {
		return result{}, err
	}
	var got assumedRole
	if xml.Unmarshal(body, &got) != nil {
		return result{}, e.unusable("its answer is not that of AssumeRoleWithWebIdentity")
	}
	keys := got.Keys
	switch want, ok := sessionOf(e.Role, e.token.ID); {
	case !ok || got.Arn != want:
		return result{}, e.unusable("it is for another role")
	case !resultSyntax.MatchString(keys.ID), !resultSyntax.MatchString(keys.Secret), !resultSyntax.MatchString(keys.Session):
		return result{}, e.unusable("a part of the key is missing, or has characters that no key has")
	}
	ends, err := e.expiry(keys.Expiration)
	return result{value: secret.New(keys.Secret), id: keys.ID, session: secret.New(keys.Session), ends: ends}, err
}

var roleSyntax = regexp.MustCompile(`^arn:([a-z-]+):iam::([0-9]{12}):role/(?:[^:]+/)?([^/:]+)$`)

// sessionOf returns the ARN of a session of a role. It has no path of the role.
func sessionOf(role, session string) (arn string, ok bool) {
	parts := roleSyntax.FindStringSubmatch(role)
	if parts == nil {
		return "", false
	}
	return fmt.Sprintf("arn:%s:sts::%s:assumed-role/%s/%s", parts[1], parts[2], parts[3], session), true
}

// google exchanges the token, and impersonates a service account if the scope names one.
func (e *exchange) google(ctx context.Context) (result, error) {
	wanted := e.Scopes
	if e.ServiceAccount != "" {
		wanted = []string{googlePlatform} // what impersonation requires
	}
	body, err := e.form(ctx, e.URL+"/v1/token", url.Values{
		"grant_type": {grantTokenExchange}, "audience": {strings.TrimPrefix(e.Audience, "https:")}, "scope": {strings.Join(wanted, " ")},
		"requested_token_type": {typeAccessToken}, "subject_token": {e.token.Secret.Reveal()}, "subject_token_type": {typeJWT},
	})
	if err != nil {
		return result{}, err
	}
	got, err := e.accessToken(body, wanted...)
	if err != nil || e.ServiceAccount == "" {
		return got, err
	}
	e.hidden = append(e.hidden, spellings(got.value.Reveal())...)
	life := min(maxGoogleLife, e.until.Sub(e.gateway.cfg.Now()))
	if life < time.Second {
		return result{}, &refusal{code: codeEnded}
	}
	body, err = e.post(ctx, e.IamURL+"/v1/projects/-/serviceAccounts/"+url.PathEscape(e.ServiceAccount)+":generateAccessToken",
		http.Header{"Authorization": {"Bearer " + got.value.Reveal()}},
		map[string]any{"scope": e.Scopes, "lifetime": wholeSeconds(life) + "s"})
	if err != nil {
		return result{}, err
	}
	var as struct {
		AccessToken string    `json:"accessToken"`
		ExpireTime  time.Time `json:"expireTime"`
	}
	if json.Unmarshal(body, &as) != nil {
		return result{}, e.unusable("it is no token with an expiry")
	}
	return e.bearer(as.AccessToken, as.ExpireTime)
}

func (e *exchange) azure(ctx context.Context) (result, error) {
	body, err := e.form(ctx, e.URL+"/"+url.PathEscape(e.Tenant)+"/oauth2/v2.0/token", url.Values{
		"grant_type": {"client_credentials"}, "client_id": {e.Client}, "scope": {e.Scope},
		"client_assertion_type": {assertionJWT}, "client_assertion": {e.token.Secret.Reveal()},
	})
	if err != nil {
		return result{}, err
	}
	return e.accessToken(body)
}

func (e *exchange) anthropic(ctx context.Context) (result, error) {
	ask := map[string]any{
		"grant_type": grantJWTBearer, "assertion": e.token.Secret.Reveal(), "federation_rule_id": e.Rule, "organization_id": e.Organization,
	}
	optional := map[string]string{"service_account_id": e.ServiceAccount, "workspace_id": e.Workspace}
	return e.jsonGrant(ctx, e.URL+"/v1/oauth/token", http.Header{anthropicBeta: {anthropicExchangeHeader}}, ask, optional)
}

func (e *exchange) openai(ctx context.Context) (result, error) {
	ask := map[string]any{
		"grant_type": grantTokenExchange, "subject_token": e.token.Secret.Reveal(), "subject_token_type": typeJWT,
		"identity_provider_id": e.IdentityProvider, "service_account_id": e.ServiceAccount,
	}
	return e.jsonGrant(ctx, e.URL+"/oauth/token", http.Header{}, ask, map[string]string{"client_id": e.Client})
}

// jsonGrant is for systems that take the parameters of a grant as JSON.
func (e *exchange) jsonGrant(ctx context.Context, at string, header http.Header, ask map[string]any, optional map[string]string) (result, error) {
	for name, value := range optional {
		if value != "" {
			ask[name] = value
		}
	}
	body, err := e.post(ctx, at, header, ask)
	if err != nil {
		return result{}, err
	}
	return e.accessToken(body)
}

// accessToken reads the answer of an OAuth token endpoint (RFC 6749, section 5.1). If scopes were asked for, it is that of a token
// exchange (RFC 8693, section 2.2.1): an access token, with no other scope.
func (e *exchange) accessToken(body []byte, wanted ...string) (result, error) {
	var got struct {
		Token   string      `json:"access_token"`
		Type    string      `json:"token_type"`
		Issued  string      `json:"issued_token_type"`
		Scope   string      `json:"scope"` // may be missing if it is what was asked for
		Expires json.Number `json:"expires_in"`
	}
	if json.Unmarshal(body, &got) != nil {
		return result{}, e.unusable("it is no answer of a token endpoint")
	}
	life, err := got.Expires.Int64()
	switch {
	case !strings.EqualFold(got.Type, "Bearer"):
		return result{}, e.unusable("it is not of type Bearer")
	case len(wanted) > 0 && got.Issued != typeAccessToken:
		return result{}, e.unusable("it is not an access token")
	case len(wanted) > 0 && slices.ContainsFunc(strings.Fields(got.Scope), func(scope string) bool { return !slices.Contains(wanted, scope) }):
		return result{}, e.unusable("it has more scopes than the gateway asked for")
	case err != nil || life < 0 || life > int64(maxResultLife/time.Second): // a Duration could hold no other
		return result{}, e.unusable("it has no expiry, or an unbelievable one")
	}
	return e.bearer(got.Token, e.gateway.cfg.Now().Add(time.Duration(life)*time.Second))
}

// resultSyntax is that of a bearer token (RFC 6750, section 2.1), and of each part of an AWS key. A shorter text could not be masked
// in responses.
var resultSyntax = regexp.MustCompile(`^[A-Za-z0-9._~+/-]{16,}=*$`)

func (e *exchange) bearer(token string, ends time.Time) (result, error) {
	if !resultSyntax.MatchString(token) {
		return result{}, e.unusable("its answer has no token, or one with characters that no token has")
	}
	ends, err := e.expiry(ends)
	return result{value: secret.New(token), ends: ends}, err
}

// expiry returns a believable end of a result.
func (e *exchange) expiry(ends time.Time) (time.Time, error) {
	if left := ends.Sub(e.gateway.cfg.Now()); left < minResultLife || left > maxResultLife {
		return time.Time{}, e.unusable("it has no expiry, or an unbelievable one")
	}
	return ends, nil
}

func (e *exchange) form(ctx context.Context, at string, values url.Values) ([]byte, error) {
	return e.send(ctx, at, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(values.Encode()))
}

func (e *exchange) post(ctx context.Context, at string, header http.Header, value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, errors.New("encoding the exchange") // err could quote the token
	}
	header = maps.Clone(header)
	header.Set("Content-Type", "application/json")
	return e.send(ctx, at, header, body)
}

// send sends a secret to the other system, over TLS to an allowed address, or without TLS to this machine if the operator allowed
// that. It returns the body of an answer with status 200. A refusal has nothing of what the other system wrote.
func (e *exchange) send(ctx context.Context, at string, header http.Header, body []byte) ([]byte, error) {
	cfg := e.gateway.cfg
	target := safehttp.Target{URL: secret.New(at), Roots: cfg.Roots, AllowPrivate: cfg.AllowPrivate, Resolver: cfg.Resolver}
	if slices.ContainsFunc(cfg.AllowPrivate, func(p netip.Prefix) bool {
		return p.Contains(netip.IPv6Loopback()) || p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}) {
		target.Plaintext = safehttp.PlaintextLoopback
	}
	c, err := safehttp.New(target)
	if err != nil {
		return nil, &refusal{code: codeUnfit, explanation: "the URL of the token endpoint is not allowed", scopes: []string{e.token.Scope}}
	}
	header.Set("Accept", "application/json, text/xml;q=0.9")
	got, err := c.Post(ctx, header, body)
	switch {
	case errors.Is(err, safehttp.ErrAddress):
		return nil, e.failed("the address of the token endpoint is not public, and the operator of the gateway has not allowed it", err)
	case err != nil:
		why := "the gateway received no answer from the token endpoint"
		if cause := upstreamError(err); cause != "" {
			why += ": " + cause
		}
		return nil, e.failed(why, err)
	case got.Status == http.StatusOK:
		return got.Body, nil
	}
	err = fmt.Errorf("the token endpoint answered %d%s", got.Status, e.told(got))
	switch {
	case got.Status == http.StatusTooManyRequests || got.Status >= 500:
		return nil, e.failedFor(retryAfter(got.Header), "the token endpoint cannot answer now", err)
	case got.Status >= 400:
		return nil, e.failed("the token endpoint refused the token: its trust configuration and the exchange of the scope do not fit, or it cannot reach Brevet", err)
	}
	return nil, e.failed("the token endpoint gave an answer that the gateway cannot use", err)
}

// failed returns the refusal for an exchange without a result.
func (e *exchange) failed(explanation string, cause error) error {
	return e.failedFor(exchangeFailedFor, explanation, cause)
}

// failedFor is failed, with the time after which the gateway tries again.
func (e *exchange) failedFor(after time.Duration, explanation string, cause error) error {
	return &refusal{
		code: codeExchange, explanation: string(e.As) + ": " + explanation, scopes: []string{e.token.Scope}, after: after,
		cause: fmt.Errorf("exchanging %s for %s: %w", e.token.ID, e.As, cause),
	}
}

// unusable returns the refusal for a result that is not what the scope asks for.
func (e *exchange) unusable(why string) error {
	return e.failed("the gateway does not use the result: "+why, errors.New("the gateway does not use the result: "+why))
}

// told returns for the log what the other system says about an error: the members of the standard formats only, because the rest of
// an answer could hold a secret.
func (e *exchange) told(got safehttp.Answer) string {
	var oauth struct {
		Error       json.RawMessage `json:"error"`
		Description string          `json:"error_description"`
	}
	var plain string
	var google struct{ Status, Type, Message string }
	var aws struct {
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	_, _, _, _ = json.Unmarshal(got.Body, &oauth), json.Unmarshal(oauth.Error, &plain), json.Unmarshal(oauth.Error, &google), xml.Unmarshal(got.Body, &aws)
	code := cmp.Or(plain, google.Status, google.Type, aws.Code)
	text := strings.TrimSpace(code + " " + cmp.Or(oauth.Description, google.Message, aws.Message))
	if text == "" {
		return ""
	}
	text = newMask(e.hidden).text(text)
	return ": " + safetext.Text(safetext.Shorten(text, maxTold))
}

// retryAfter returns the time in Retry-After, within bounds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil {
		return exchangeFailedFor // a date, or none
	}
	return min(max(exchangeFailedFor, time.Duration(seconds)*time.Second), maxExchangeFailedFor)
}

func wholeSeconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
