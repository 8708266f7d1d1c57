package console

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/secret"
)

// The defaults of a session. NIST SP 800-63B asks for a new login after 30 minutes without activity and after 12 hours; eight
// hours are a shift.
const (
	DefaultSessionIdle   = 30 * time.Minute
	DefaultSessionLength = 8 * time.Hour
	DefaultLoginMaxAge   = 15 * time.Minute
	// LongestSession bounds SessionLength.
	LongestSession = 24 * time.Hour
)

const (
	// keptFor is how long a form can be sent again after its login has ended.
	keptFor = time.Hour
	// maxKept is the largest body of a form that is kept without a session, in bytes. The longest note or reason has 1000.
	maxKept = 64 << 10
	// warnBefore is how long before the end of a session its page warns.
	warnBefore = 2 * time.Minute
	// extendEvery is the longest time by which a session may end early, to spare the database a write for each page.
	extendEvery = time.Minute
)

// Keys of a session. A session begins when the console receives an ID token from the provider.
const (
	keyIDToken = "id_token"
	keyBegan   = "began"
	keyNotice  = "notice"
)

// lifetime says when a session began, when it ends without activity, and when it ends in any case.
type lifetime struct{ Began, Idle, Ends time.Time }

// begin starts the session of a login. Somebody else may have started the session in this browser, so begin discards its data and
// its token.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, raw string, person people.Person) error {
	if err := errors.Join(c.sessions.Clear(r.Context()), c.sessions.RenewToken(r.Context())); err != nil {
		return err
	}
	c.sessions.Put(r.Context(), keyIDToken, raw)
	c.sessions.Put(r.Context(), keyBegan, c.cfg.Now().UnixMilli())
	c.extend(r)
	signature := base64.RawURLEncoding.EncodeToString(c.tokenSignature(c.sessions.Token(r.Context())))
	c.setCookie(w, signatureCookie, signature, c.cfg.SessionLength+time.Second) // the session cookie ends earlier
	name := c.nameless(person)
	c.setCookie(w, personCookie, name+"."+c.nameSignature(name), c.cfg.SessionLength+keptFor)
	return nil
}

// extend moves the end of a session, unless it would move by less than a step.
func (c *Console) extend(r *http.Request) {
	now, ends := c.cfg.Now(), c.began(r).Add(c.cfg.SessionLength)
	if idle := now.Add(c.cfg.SessionIdle); idle.Before(ends) {
		ends = idle
	}
	if old := c.sessions.Deadline(r.Context()); ends.Sub(old).Abs() >= min(extendEvery, c.cfg.SessionIdle/4) {
		c.sessions.SetDeadline(r.Context(), ends.UTC())
	}
}

// began returns when the session began.
func (c *Console) began(r *http.Request) time.Time {
	return time.UnixMilli(c.sessions.GetInt64(r.Context(), keyBegan))
}

// session returns the ID token of the session and its lifetime. It ends a session that is over by the clock of this replica; the
// database does not return one that is over by its own. It returns errNobody if there is none.
func (c *Console) session(r *http.Request) (raw string, l lifetime, err error) {
	raw = c.sessions.GetString(r.Context(), keyIDToken)
	if raw == "" {
		return "", l, errNobody
	}
	if !c.cfg.Now().Before(c.sessions.Deadline(r.Context())) {
		return "", l, errors.Join(errNobody, c.sessions.Destroy(r.Context()))
	}
	if inPerson(r) {
		c.extend(r)
	}
	began := c.began(r)
	return raw, lifetime{Began: began, Idle: c.sessions.Deadline(r.Context()), Ends: began.Add(c.cfg.SessionLength)}, nil
}

// inPerson reports whether a person caused the request. A page that refreshes by itself does not keep a session open. Not every
// browser says which requests are those of scripts, so the addresses that only scripts ask for never count.
func inPerson(r *http.Request) bool {
	switch r.URL.Path {
	case stayPath:
		return true
	case "/approvals/events", "/live/rates.json", "/ledger/growth":
		return false
	}
	return r.Header.Get("HX-Request") == "" && r.Header.Get("Sec-Fetch-Dest") != "empty"
}

// recent reports whether the visitor has logged in recently enough to change something. A session outlives the ID token, so
// without this limit a person who has left a group could act as its member until the session ends.
func (c *Console) recent(who *visitor) bool { return c.cfg.Now().Sub(who.Began) <= c.cfg.LoginMaxAge }

const stayPath = "/session/stay"

// stay keeps a session open, and returns when it ends now. A script calls it while a person uses the page.
func (c *Console) stay(w http.ResponseWriter, _ *http.Request, who *visitor) error {
	return writeJSON(w, map[string]time.Time{"idle": who.Idle, "ends": who.Ends})
}

// nameless returns a digest by which pages and kept forms identify their person. It reveals nobody, and only this console can
// compute it.
func (c *Console) nameless(person people.Person) string {
	return base64.RawURLEncoding.EncodeToString(sign(c.naming, person.ID()))
}

// nameSignature returns the signature of a digest from nameless. Only a login in this browser leaves it here.
func (c *Console) nameSignature(name string) string {
	return base64.RawURLEncoding.EncodeToString(sign(c.naming, name))
}

// lastPerson returns the digest of the person who was last logged in in this browser, or "" if nobody was.
func (c *Console) lastPerson(r *http.Request) string {
	cookie, err := r.Cookie(c.cookieName(personCookie))
	if err != nil {
		return ""
	}
	name, signature, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(signature), []byte(c.nameSignature(name))) {
		return ""
	}
	return name
}

// kept is a form that its person could not send, because the login had ended. It is sealed and stays in the browser.
type kept struct {
	Person string // from nameless
	Action string
	Fields url.Values
	Until  time.Time
}

// keptForm is what a page says about a form that was not sent.
type keptForm struct {
	Sealed string // empty if the form is not kept
	Secret bool   // it is not kept because it seems to contain a secret
	Person string
	Action string
	Page   string // where the form is, if a script said so
	Fields url.Values
}

// Names of the fields that the console adds to a form: the person for whom the page was rendered, the address of the page, the
// address of the form, a kept form in place of all other fields, and that its person has seen these.
const (
	fieldPerson = "page-person"
	fieldPage   = "page-address"
	fieldAction = "page-action"
	fieldKept   = "page-kept"
	fieldSeen   = "page-seen"
)

// keep seals the form of a request. It keeps nothing if it does not know whose form it is, so that nobody sees what somebody else
// has typed, and nothing that looks like a secret.
//
// Without a session, it reads only a short form, of a browser in which somebody was logged in, and not too often. It leaves the
// forms of strangers unread, so that they cause no work.
func (c *Console) keep(r *http.Request, who *visitor) keptForm {
	last := c.lastPerson(r)
	if who == nil {
		if last == "" || !c.pace.Allow(last, c.cfg.Now()) {
			return keptForm{Page: "/"}
		}
		r.Body = http.MaxBytesReader(nil, r.Body, maxKept)
	}
	if readForm(r) != nil {
		return keptForm{Page: "/"}
	}
	k := keptForm{Person: r.PostForm.Get(fieldPerson), Action: r.URL.Path, Page: localPath(r.PostForm.Get(fieldPage))}
	if action := r.PostForm.Get(fieldAction); action != "" {
		k.Action = localPath(action)
	}
	if k.Person == "" {
		k.Person = last
	}
	if who != nil && k.Person == "" {
		k.Person = c.nameless(who.Person)
	}
	if again := r.PostForm.Get(fieldKept); again != "" {
		k.Sealed = again // sealed before, so it needs no second look
		return k
	}
	fields := url.Values{}
	for name, values := range r.PostForm {
		switch name {
		case fieldPerson, fieldPage, fieldAction, fieldSeen:
			continue
		}
		fields[name] = values
		k.Secret = k.Secret || slices.ContainsFunc(values, secret.Shaped)
	}
	if k.Person == "" || k.Secret || len(fields) == 0 || r.MultipartForm != nil && len(r.MultipartForm.File) > 0 {
		return k
	}
	text, err := json.Marshal(kept{k.Person, k.Action, fields, c.cfg.Now().Add(keptFor)})
	if err == nil {
		k.Sealed = base64.RawURLEncoding.EncodeToString(seal(c.keeping, text))
	}
	return k
}

// unkeep opens a kept form of the visitor for an address.
func (c *Console) unkeep(sealed, action string, who *visitor) (url.Values, error) {
	var k kept
	data, err := base64.RawURLEncoding.DecodeString(sealed)
	if err == nil {
		data, err = unseal(c.keeping, data)
	}
	if err != nil || json.Unmarshal(data, &k) != nil || k.Action != action || !c.cfg.Now().Before(k.Until) {
		return nil, errNotKept
	}
	if k.Person != c.nameless(who.Person) {
		return nil, errOtherPerson
	}
	return k.Fields, nil
}

// readForm parses a form. It reads files only as far as maxBody, which limits the whole request.
func readForm(r *http.Request) error {
	if err := r.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return errForm
	}
	return nil
}

// receive parses the form of a visitor, or opens the kept one that it contains. It refuses a form from a page of somebody else,
// who was logged in in this browser when the page was opened.
//
// The login of the person does not show that they typed a kept form: somebody else may have used their browser. So receive first
// shows them the fields, and then the form is not ready.
func (c *Console) receive(w http.ResponseWriter, r *http.Request, who *visitor) (ready bool, err error) {
	if err := readForm(r); err != nil {
		return false, err
	}
	if person := r.PostForm.Get(fieldPerson); person != "" && person != c.nameless(who.Person) {
		return false, errOtherPerson
	}
	sealed := r.PostForm.Get(fieldKept)
	if sealed == "" {
		return true, nil
	}
	fields, err := c.unkeep(sealed, r.URL.Path, who)
	if err != nil {
		return false, err
	}
	if r.PostForm.Get(fieldSeen) == "" {
		c.show(w, r, who, pageKept.view("Check the kept form", keptForm{
			Sealed: sealed, Action: r.URL.Path, Page: localPath(r.PostForm.Get(fieldPage)), Fields: fields,
		}))
		return false, nil
	}
	r.PostForm, r.Form = fields, fields
	return true, nil
}

// keepTyped seals what a person has typed so far, for a script that is about to leave the page for a login. The session may have
// ended.
func (c *Console) keepTyped(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	if err != nil && !errors.Is(err, errNobody) {
		c.fail(w, r, who, err)
		return
	}
	k := c.keep(r, who)
	if k.Sealed == "" {
		c.fail(w, r, who, errNotKept)
		return
	}
	_ = writeJSON(w, map[string]string{"kept": k.Sealed, "person": k.Person}) // the client may have disconnected
}

// openTyped returns the fields of a kept form to a script, which fills in the form.
func (c *Console) openTyped(w http.ResponseWriter, r *http.Request, who *visitor) error {
	if err := readForm(r); err != nil {
		return err
	}
	fields, err := c.unkeep(r.PostForm.Get(fieldKept), r.PostForm.Get(fieldAction), who)
	if err != nil {
		return err
	}
	return writeJSON(w, fields)
}

func writeJSON(w http.ResponseWriter, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may have disconnected
	return nil
}

// unsent is a failure that kept a form from being received.
type unsent struct {
	error

	form keptForm
}

func (u *unsent) Unwrap() error { return u.error }

// needLogin answers a form whose sender has no valid login, or none that is recent enough. It keeps the form.
func (c *Console) needLogin(w http.ResponseWriter, r *http.Request, who *visitor, cause error) {
	c.fail(w, r, who, &unsent{cause, c.keep(r, who)})
}

// LoginPath returns the address of a login that returns to the page of the form.
func (k keptForm) LoginPath() string { return "/login?return=" + url.QueryEscape(k.Page) }
