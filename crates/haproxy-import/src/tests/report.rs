//! The report: grouping, secrets, wording, and `--strict`.

use super::*;

#[test]
fn keeps_passwords_out_of_the_report() {
    let text = "global\n setenv X hunter2\n nonsense hunter2\nuserlist u\n user a insecure-password hunter2\n\
                listen stats\n mode http\n bind :1\n stats enable\n stats auth a:hunter2\n\
                listen redis\n bind :6379\n option tcp-check\n tcp-check send \"PING\\r\\nAUTH hunter2\\r\\n\"\n\
                tcp-check send \"SENTINEL master ${PORT}\\r\\nAUTH hunter2\\r\\n\"\n\
                tcp-check expect string hunter2\n server a 10.0.0.1:6379 # hunter2\n";
    let imported = import_with(text, &named(&["redis=m"]));
    let login = service(&imported)["sentinel_auth"]["password"].as_str().map(str::to_owned);
    assert_eq!(login.as_deref(), Some("hunter2"));
    let shown = imported.report.render(true);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(imported.report.lines.len(), 17);
}

#[test]
fn names_the_effect_of_each_timeout() {
    for (timeout, part) in [
        ("timeout queue 1m", "Pointsman has no queue"),
        ("timeout connect 0", "service.connect_timeout keeps its default"),
        ("timeout client 1m", "idle clients stay connected"),
        ("timeout nonsense 1m", "this timeout has no effect here"),
    ] {
        let imported = import(&listen(&format!(" {timeout}\n")));
        assert!(line(&imported, 4).note.contains(part), "{:?}", line(&imported, 4));
    }
}

#[test]
fn refuses_guesses_if_strict() {
    let strict = ImportOptions { strict: true, ..ImportOptions::default() };
    let imported = import_with(&listen(""), &strict);
    assert!(refused(&imported).contains("--strict: 2 lines ASSUMED, 0 lines with NO COUNTERPART"));
    assert!(imported.report.render(false).contains("ASSUMED"));
    let options =
        ImportOptions { strict: true, sentinels: vec![(None, "s:1".to_owned())], ..named(&[]) };
    let name = import_with(&listen(" tcp-check expect string role:master\n"), &options);
    assert!(refused(&name).contains("--strict: 1 lines ASSUMED"), "the name: {}", refused(&name));
    let options = ImportOptions { names: named(&["redis=m"]).names, ..options };
    let sure = import_with(&listen(" tcp-check expect string role:master\n"), &options);
    assert_eq!(sure.refusals, []);
}

#[test]
fn names_what_it_cannot_do() {
    let text = "listen redis\n bind :6379 accept-proxy\n bind abns@s\n\
                server a h:6379 send-proxy\n server b h:6380 maxconn 5\n";
    let imported = import(text);
    for (number, part) in [(2, "PROXY"), (3, "abstract"), (4, "PROXY"), (5, "per server")] {
        let line = line(&imported, number);
        assert!(line.outcome == LineOutcome::Unmatched && line.note.contains(part), "{line:?}");
    }
}

#[test]
fn reads_several_files_as_one() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = [file("a.cfg", "defaults\n timeout connect 3s\n"), file("b.cfg", &listen(""))];
    let imported = import_files(&files, &ImportOptions::default());
    assert_eq!(service(&imported)["connect_timeout"].as_str(), Some("3s"));
    let mapped = imported.report.render(true);
    assert!(mapped.contains("a.cfg:2  timeout connect 3s"), "{mapped}");
}

/// Equal findings are one group, with the numbers of their lines.
#[test]
fn groups_equal_lines_of_the_report() {
    let checks = " option tcp-check\n tcp-check connect\n tcp-check connect\n".repeat(2);
    let shown = import(&listen(&checks)).report.render(true);
    assert_eq!(shown.matches("Pointsman has no health checks").count(), 1, "{shown}");
    assert!(
        shown.contains("    h.cfg:4, 7  option tcp-check\n    h.cfg:5-6, 8-9  tcp-check connect\n"),
        "{shown}"
    );
}

/// Harmless options are known by name; every other one is reported, with TLS on the line as well.
#[test]
fn reports_options_of_lines_that_it_lacks() {
    let text = |bind: &str, defaults: &str, server: &str| {
        format!(
            "defaults\n default-server inter 1s{defaults}\nlisten redis\n \
             bind 10.0.0.9:6379 name x{bind}\n option redis-check\n \
             server a h:6379 check inter 1s on-marked-down shutdown-sessions{server}\n"
        )
    };
    let import = |bind, defaults, server| {
        let sentinels = vec![(None, "s:26379".to_owned())];
        import_with(&text(bind, defaults, server), &ImportOptions { sentinels, ..named(&["m"]) })
    };
    let harmless = import(" v4v6 tfo backlog 9", " resolvers r init-addr none", " backup weight 2");
    assert!(harmless.report.lines.iter().all(|it| it.outcome != LineOutcome::Unmatched));
    for (option, part) in [
        (" interface eth1", "`interface`"),
        (" namespace blue", "`namespace`"),
        (" maxconn 100", "`maxconn`"),
        (" transparent", "`transparent`"),
        (" accept-netscaler-cip 1", "`accept-netscaler-cip`"),
        (" uid 7 gid 7", "`uid`, `gid`"),
        (" ssl crt /x.pem ssl-min-ver TLSv1.0 maxconn 5", "TLS 1.1 and older"),
        (" ssl crt /x.pem maxconn 5", "`maxconn`"),
        (" accept-proxy maxconn 5", "`maxconn`"),
        (" later-keyword", "`later-keyword`"),
    ] {
        let imported = import(option, "", "");
        let line = line(&imported, 4);
        assert_eq!(
            (line.outcome, line.note.contains(part)),
            (LineOutcome::Unmatched, true),
            "{line:?}"
        );
    }
    for (option, part) in [
        (" source 10.9.9.9 usesrc clientip", "`source`, `usesrc`"),
        (" interface eth2", "`interface`"),
        (" namespace blue", "`namespace`"),
        (" socks4 10.0.0.1:1080", "`socks4`"),
        (" send-proxy", "PROXY"),
        (" send-proxy-v2-ssl-cn", "PROXY"),
        (" check-send-proxy", "PROXY"),
        (" set-proxy-v2-tlv-fmt(0x20) %[x]", "PROXY"),
        (" maxconn 5", "per server"),
        (" ssl verify none send-proxy-v2-ssl", "PROXY"),
    ] {
        for (number, imported) in [(6, import("", "", option)), (2, import("", option, ""))] {
            let line = line(&imported, number);
            assert_eq!(
                (line.outcome, line.note.contains(part)),
                (LineOutcome::Unmatched, true),
                "{line:?}"
            );
        }
    }
}

/// Otherwise every network could reach what haproxy offered to one.
#[test]
fn refuses_every_address_of_one_interface() {
    for option in ["interface eth1", "namespace blue"] {
        let line = format!("bind :6379 {option}");
        let shown = refusal(&listen("").replace("bind :6379", &line));
        assert!(shown.contains("h.cfg:2:2: it accepts connections through `"), "{shown}");
        let admin = format!("listen s\n mode http\n {}\n stats enable\n", line.replace("63", "84"));
        assert!(refusal(&(listen("") + &admin)).contains("h.cfg:6:2: it accepts connections"));
    }
}

#[test]
fn keeps_secrets_of_http_and_conditions_out() {
    let text = "global\n set-var proc.pw str(S3CRET)\ndefaults\n option httpchk GET / HTTP/1.1\\r\\nToken:\\ S3CRET\n\
                listen redis\n bind :6379\n tcp-check set-var(check.pw) str(S3CRET)\n \
                tcp-check set-var-fmt(check.pw) S3CRET\n \
                tcp-check send-lf \"AUTH %[var(check.pw)]\\r\\n\"\n tcp-check comment \"auth S3CRET\"\n \
                acl token req.payload(0,9) -m str S3CRET\n acl inside src 10.0.0.0/8\n \
                tcp-request content reject if !{ req.payload(0,9) -m str S3CRET }\n \
                tcp-request content set-var(txn.x) str(S3CRET)\n \
                tcp-request connection reject unless { src 10.0.0.0/8 }\n \
                use_backend redis if { nbsrv(redis) ge 1 }\n \
                use-server a if { req.payload(0,9) -m str S3CRET }\n server a h:6379\n\
                frontend web\n mode http\n bind :80\n http-request set-header Authorization S3CRET\n \
                http-request deny unless { req.hdr(X) -m str S3CRET }\n \
                http-response set-header X S3CRET\n http-check send hdr Authorization S3CRET\n \
                rspadd X:\\ S3CRET\n redirect prefix /S3CRET\n";
    for imported in [import(text), import_with(text, &named(&["redis=m"]))] {
        let shown = imported.report.render(true);
        assert!(!shown.contains("S3CRET"), "{shown}");
        for part in ["acl inside src 10.0.0.0/8", "{ src 10.0.0.0/8 }", "{ nbsrv(redis) ge 1 }"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(imported.report.lines.len(), text.lines().count());
    }
}

/// The limit of the process alone is kept.
#[test]
fn reports_limits_that_do_not_fit() {
    let one = format!("global\n maxconn 100\n{}", listen(" maxconn 400\n"));
    let readers = "listen redis-ro\n bind :2\n tcp-check expect string role:slave\n \
                   server a 10.0.0.1:6379\n";
    let both = one.clone() + " tcp-check expect string role:master\n" + readers;
    for (text, outcome) in [(one, LineOutcome::Unneeded), (both, LineOutcome::Assumed)] {
        let imported = import(&text);
        assert!(!service(&imported).contains_key("max_connections"));
        let line = line(&imported, 6);
        assert_eq!(line.outcome, outcome, "{line:?}");
        assert!(line.note.contains("process.max_connections"), "{line:?}");
    }
}

#[test]
fn reports_the_prefix_of_socket_files() {
    let socket = listen("").replace(":6379\n server", "unix@/redis.sock\n server");
    for rest in ["prefix /srv/run", "mode 777", "user redis"] {
        let imported = import(&format!("global\n unix-bind {rest}\n{socket}"));
        assert!(service(&imported)["listen"].to_string().contains("unix:/redis.sock"));
        let line = line(&imported, 2);
        assert_eq!(line.outcome, LineOutcome::Unmatched);
        assert!(line.note.contains("add the prefix"), "{line:?}");
    }
}
