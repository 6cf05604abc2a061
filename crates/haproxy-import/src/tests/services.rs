//! Which listeners become which services, and what is refused.

use super::*;

#[test]
fn marks_what_it_assumes() {
    let imported = import(&listen(" option redis-check\n"));
    let service = service(&imported);
    assert_eq!(service["sentinels"].to_string(), "[\"10.0.0.1:26379\"]");
    assert_eq!(line(&imported, 1).outcome, LineOutcome::Assumed, "no check asks for the role");
    assert_eq!(line(&imported, 3).outcome, LineOutcome::Assumed, "where the sentinels are");
    assert!(imported.toml.contains("\"mymaster\" is assumed"), "{}", imported.toml);
    let options = ImportOptions { sentinels: vec![(None, "s:26379".to_owned())], ..named(&["m"]) };
    let given = import_with(&listen(""), &options);
    assert!(
        !given.toml.contains("assumed") && given.toml.contains("\"s:26379\""),
        "{}",
        given.toml
    );
}

/// Name, master and sentinels of each service.
fn masters(imported: &Import) -> Vec<[String; 3]> {
    let table = table(imported);
    let all = table["service"].as_array().unwrap().iter();
    all.map(|it| {
        let master = it.get("master").unwrap_or(&it["name"]);
        [&it["name"], master, &it["sentinels"]].map(|it| it.to_string().replace('"', ""))
    })
    .collect()
}

#[test]
fn merges_listeners_only_with_equal_servers() {
    let same = "listen a\n bind :1\n server x h1:6379\nlisten b\n bind :2\n server x h1:6379\n";
    assert_eq!(service(&import(same))["listen"].as_array().unwrap().len(), 2);
    let text = |other: &str| {
        let check = ":2\n option redis-check\n server x ";
        same.replace(":2\n server x h1:6379", &format!("{check}{other}"))
    };
    // Two groups of sentinels: two masters, whatever they are called.
    let apart = [["a", "mymaster", "[h1:26379]"], ["b", "mymaster", "[h2:26379]"]];
    for names in [&[][..], &["mymaster"], &["a=mymaster", "b=mymaster"]] {
        let imported = import_with(&text("h2:6379"), &named(names));
        assert_eq!(masters(&imported), apart, "{names:?}");
        assert!(imported.toml.contains("master = \"mymaster\""), "{}", imported.toml);
    }
    let beta = import_with(&text("h2:6379"), &named(&["b=beta"]));
    assert_eq!(masters(&beta).iter().map(|it| &*it[0]).collect::<Vec<_>>(), ["mymaster", "beta"]);
    // A common process: one dataset, yet not all of its servers are the other's.
    let overlapping = import(&text("h1:6379\n server y h2:6379"));
    assert_eq!(
        masters(&overlapping).iter().map(|it| &*it[1]).collect::<Vec<_>>(),
        ["mymaster", "mymaster"]
    );
}

/// Otherwise clients of one would get the data of the other.
#[test]
fn refuses_one_master_for_two_sets_of_servers() {
    let text = "listen a\n bind :1\n server x h1:6379\n\
                listen b\n bind :2\n option redis-check\n server x h1:6380\n";
    let shown = refusal(text);
    assert!(shown.contains("h.cfg:4:1: a and b have different servers, and both"), "{shown}");
    assert!(shown.contains("--name a=NAME --name b=NAME; or the"), "{shown}");
    assert!(shown.contains("--sentinel a=HOST:PORT --sentinel b=HOST:PORT"), "{shown}");
    for names in [&["m"][..], &["a=m", "b=m"]] {
        assert!(refused_with(text, names).contains("the same sentinels for \"m\""), "{names:?}");
    }
    // Each remedy is accepted.
    assert_eq!(masters(&import_with(text, &named(&["a=m", "b=n"])))[1][0], "n");
    let own = |name: &str, addr: &str| (Some(name.to_owned()), addr.to_owned());
    let sentinels = vec![own("a", "s1:1"), own("b", "s2:1")];
    let options = ImportOptions { sentinels, ..ImportOptions::default() };
    let expected = [["a", "mymaster", "[s1:1]"], ["b", "mymaster", "[s2:1]"]];
    assert_eq!(masters(&import_with(text, &options)), expected);
    let options = ImportOptions { sentinels: vec![own("c", "s1:1")], ..ImportOptions::default() };
    let shown = refused(&import_with(text, &options));
    assert!(shown.contains("--sentinel c=s1:1: no Redis listener has this name"), "{shown}");
}

#[test]
fn names_services_uniquely() {
    let listener = |name: &str, host: &str, port: usize| {
        format!("listen {name}\n bind :{port}\n server x {host}:6379\n")
    };
    let text = listener("a:b", "h1", 1) + &listener("a-b", "h2", 2) + &listener("c", "h3", 3);
    let named = import_with(&text, &named(&["a:b=m", "a-b=m", "c=a-b"]));
    let names: Vec<String> = masters(&named).iter().map(|it| it[..2].join(" ")).collect();
    assert_eq!(names, ["a-b-2 m", "a-b-3 m", "a-b a-b"]);
}

#[test]
fn finds_the_master_of_readers_by_service_or_servers() {
    let listener = |name: &str, host: &str, port: usize, role: &str| {
        format!(
            "listen {name}\n bind :{port}\n option redis-check\n \
             tcp-check expect string role:{role}\n server x {host}:6379\n"
        )
    };
    let text = listener("a", "h1", 1, "master")
        + &listener("b", "h2", 2, "master")
        + &listener("ro", "h2", 3, "slave")
        + &listener("more", "h9", 4, "slave");
    let shown = refusal(&text);
    assert!(shown.contains("--name more=a or --name more=b"), "{shown}");
    assert!(refused_with(&text, &["more=mymaster"]).contains("belong to no single master"));
    for names in [&["more=a"][..], &["more=a", "ro=mymaster"]] {
        let table = table(&import_with(&text, &named(names)));
        let readers = |at: usize| table["service"][at]["replica_listen"].to_string();
        assert_eq!((readers(0), readers(1)), ("[\"0.0.0.0:4\"]".into(), "[\"0.0.0.0:3\"]".into()));
    }
}

/// A server without a port gets the port that its clients connected to.
#[test]
fn compares_servers_by_effective_port() {
    let text = "listen a\n bind :6379\n server x H1\nlisten b\n bind :2\n server x h1:6379\n";
    assert_eq!(services(&import(text)).len(), 1);
    assert!(
        refusal(&text.replace(":6379\n server x H1", ":6380\n option redis-check\n server x h1"))
            .contains("different")
    );
}

#[test]
fn refuses_names_for_unknown_listeners() {
    let refused = refused_with(&listen(""), &["redsi=m"]);
    assert!(
        refused.contains("--name redsi=m: no Redis listener has this name; use one of: redis"),
        "{refused}"
    );
}

#[test]
fn refuses_two_names_for_one_listener() {
    assert!(
        refused_with(&listen(""), &["redis=a", "redis=b"])
            .contains("--name gives two names, a and b")
    );
    assert!(refused_with(&listen(""), &["a", "b"]).contains("--name gives two names"));
    assert_eq!(services(&import_with(&listen(""), &named(&["a", "redis=b"]))).len(), 1);
}

/// Readers may be the only ones whose check authenticates, or authenticate as another user. A
/// listener without queries gets the sentinels of its own hosts, or none of the two installations.
#[test]
fn never_mixes_two_installations_of_sentinels() {
    let group = |name: &str| {
        format!(
            "listen {name}\n bind :{}\n tcp-check connect port 26379\n \
             tcp-check send \"SENTINEL master {name}\\r\\n\"\n server a {name}1:6379\n",
            name.len()
        )
    };
    let text = |host: &str| {
        let both = format!("{}{}", group("one"), group("second"));
        format!("{both}listen last\n bind :9\n option redis-check\n server a {host}:6380\n")
    };
    let sentinels = |host: &str| {
        let imported = import_with(&text(host), &named(&["last=last"]));
        table(&imported)["service"][2]["sentinels"].to_string()
    };
    assert_eq!(sentinels("second1"), "[\"second1:26379\"]");
    assert_eq!(sentinels("third"), "[\"third:26379\"]");
}

#[test]
fn takes_login_of_any_listener() {
    let text = |master: &str| {
        format!(
            "listen a\n bind :1\n tcp-check expect string role:master\n server x h1:6379\n{master}\
             listen ro\n bind :2\n tcp-check expect string role:slave\n server x h1:6379\n \
             tcp-check send \"AUTH hunter2\\r\\n\"\n"
        )
    };
    let imported = import(&text(""));
    assert_eq!(service(&imported)["auth"]["password"].as_str(), Some("hunter2"));
    let other = import(&text(" tcp-check send \"AUTH hunter3\\r\\n\"\n"));
    assert_eq!(service(&other)["auth"]["password"].as_str(), Some("hunter3"));
    assert!(line(&other, 10).note.contains("another login"), "{:?}", line(&other, 10));
    assert!(!other.report.render(true).contains("hunter"));
}

#[test]
fn lets_default_backend_override_that_of_defaults() {
    let text = "defaults\n default_backend x\nfrontend f\n bind :1\n default_backend y\n\
                backend x\n server a h1:6379\nbackend y\n server b h2:6379\n";
    assert_eq!(service(&import(text))["sentinels"].to_string(), "[\"h2:26379\"]");
    let inherited = text.replace(" default_backend y\n", "");
    assert_eq!(service(&import(&inherited))["sentinels"].to_string(), "[\"h1:26379\"]");
}

#[test]
fn refuses_one_listener_for_several_datasets() {
    let backends = "backend x\n server a h1:6379\nbackend y\n server b h2:6379\n";
    let front = |rule: &str| {
        format!("frontend f\n bind :1\n use_backend x if {rule}\n default_backend y\n{backends}")
    };
    let by_source = refusal(&front("{ src 10.0.0.0/8 }"));
    assert!(
        by_source.contains("h.cfg:3:2: f selects between different servers by client"),
        "{by_source}"
    );
    let by_health = refusal(&front("{ nbsrv(x) ge 1 }"));
    assert!(
        by_health.contains("h.cfg:1:1: the backends of f have different servers"),
        "{by_health}"
    );
    assert_eq!(services(&import_with(&front("{ nbsrv(x) ge 1 }"), &named(&["f=m"]))).len(), 1);
    let votes = |name: &str, master: &str, host: &str| {
        let query = format!("tcp-check send SENTINEL\\ master\\ {master}\\r\\n");
        format!("backend {name}\n {query}\n server s {host}:26379\n")
    };
    let one = front("{ nbsrv(v) ge 1 }") + &votes("v", "m", "h1");
    assert!(refusal(&one).contains("f can lead to servers that no sentinel's answer selects"));
    let voted = one.replace(" default_backend y", " use_backend y if { nbsrv(u) ge 1 }")
        + &votes("u", "m", "h1");
    assert_eq!(services(&import(&voted)), [("m".to_owned(), "[\"0.0.0.0:1\"]".to_owned())]);
    let two = voted
        .replace("use_backend x if", "acl other nbsrv(w) ge 1\n use_backend x if other or")
        + &votes("w", "n", "h2");
    assert!(
        refusal(&two).contains("the checks of f ask for several masters: m, n"),
        "{}",
        refusal(&two)
    );
}

#[test]
fn refuses_two_services_on_one_address() {
    let text =
        "listen a\n bind :1\n server x h1:6379\nlisten b\n bind 10.0.0.1:1\n server x h2:6379\n";
    let refused = refused_with(text, &["a=a", "b=b"]);
    assert!(
        refused.contains("h.cfg:5:2: 10.0.0.1:1 is already taken by 0.0.0.0:1 (h.cfg:2)"),
        "{refused}"
    );
}

#[test]
fn gives_readers_to_the_master_with_their_servers() {
    let text = |servers: &str| {
        format!(
            "listen a\n bind :1\n tcp-check expect string role:master\n server x h1:6379\n server y h2:6379\n\
             listen ro\n bind :2\n tcp-check expect string role:slave\n{servers}"
        )
    };
    let whole = import(&text(" server x h1:6379\n server y h2:6379\n"));
    assert_eq!(service(&whole)["replica_listen"].to_string(), "[\"0.0.0.0:2\"]");
    assert_eq!(line(&whole, 6).outcome, LineOutcome::Mapped);
    assert_eq!(line(&import(&text(" server y h2:6379\n")), 6).outcome, LineOutcome::Assumed);
    let elsewhere = text(" server y h2:6380\n option redis-check\n");
    assert!(
        refusal(&elsewhere)
            .contains("h.cfg:6:1: ro is for readers, and its servers belong to no single")
    );
    assert!(
        service(&import_with(&elsewhere, &named(&["ro=mymaster"]))).contains_key("replica_listen")
    );
    assert!(refused_with(&elsewhere, &["ro=other"]).contains("belong to no single master"));
}

#[test]
fn recognizes_readers_by_whole_words() {
    for (name, is_reader) in
        [("redis-read", true), ("redis_ro", true), ("myreadonly", true), ("app-slaves", true)]
            .into_iter()
            .chain([("redis-ready", false), ("thread-cache", false), ("redis-rotation", false)])
    {
        let text = format!(
            "{}listen {name}\n bind :2\n option redis-check\n server a 10.0.0.1:6379\n",
            listen(" tcp-check expect string role:master\n")
        );
        assert_eq!(service(&import(&text)).contains_key("replica_listen"), is_reader, "{name}");
    }
}

#[test]
fn recognizes_frontends_for_sentinels() {
    let front = "frontend s\n bind :26379\n default_backend b\nbackend b\n option tcp-check\n \
                 tcp-check send PING\\r\\n\n server s1 h7:26379\n server s2 h8:26379\n";
    let imported = import(&format!("{}{front}", listen(" tcp-check expect string role:master\n")));
    assert_eq!(services(&imported), [("mymaster".to_owned(), "[\"0.0.0.0:6379\"]".to_owned())]);
    assert_eq!(service(&imported)["sentinels"].to_string(), "[\"h7:26379\", \"h8:26379\"]");
    for number in [5, 6, 7, 8] {
        let line = line(&imported, number);
        assert!(
            line.outcome == LineOutcome::Unmatched && line.note.contains("leads to sentinels"),
            "{line:?}"
        );
    }
    assert!(
        refusal(front).contains("no listener leads to Redis, only to sentinels"),
        "{}",
        refusal(front)
    );
    // At another port the command shows it.
    let other = front.replace(":26379", ":5000").replace("PING\\r", "SENTINEL\\ masters\\r");
    assert!(refusal(&other).contains("only to sentinels"), "{}", refusal(&other));
}

#[test]
fn accepts_empty_and_disabled_sections() {
    let defaults = "defaults\n option redis-check\nlisten unused\nlisten off\n bind :9\n disabled\n server a h:6379\n";
    let imported = import(&format!("{defaults}{}", listen("")));
    assert_eq!(services(&imported).len(), 1);
    assert_eq!(line(&imported, 3).outcome, LineOutcome::Unneeded);
    assert!(line(&imported, 5).note.contains("disabled"), "{:?}", line(&imported, 5));
}

#[test]
fn keeps_other_traffic_in_haproxy() {
    let web = "frontend w\n mode http\n bind :80\n stats enable\n default_backend app\n\
               backend app\n server a h:8080\nlisten db\n bind :3306\n server d h:3306\n";
    let imported = import(&format!("{web}{}", listen("")));
    assert!(!imported.toml.contains(":80\""), "{}", imported.toml);
    for number in 1..=10 {
        assert!(
            line(&imported, number).note.contains("keep it in haproxy"),
            "{:?}",
            line(&imported, number)
        );
    }
}

#[test]
fn takes_statistics_from_a_backend() {
    let stats = "frontend m\n mode http\n bind :8404\n default_backend s\nbackend s\n mode http\n stats enable\n";
    let imported = import(&format!("{stats}{}", listen("")));
    assert_eq!(table(&imported)["admin"]["listen"].to_string(), "[\"0.0.0.0:8404\"]");
    assert_eq!(line(&imported, 5).outcome, LineOutcome::Mapped);
    // Not to everybody what haproxy shows to some.
    for rule in [
        "http-request deny unless { src 10.0.0.0/8 }",
        "http-request auth",
        "tcp-request connection reject if !{ src 10.0.0.0/8 }",
    ] {
        let limited = stats.replacen(" bind", &format!(" {rule}\n bind"), 1);
        let imported = import(&format!("{limited}{}", listen("")));
        assert!(
            table(&imported).get("admin").is_none_or(|it| it.get("listen").is_none()),
            "{rule}"
        );
        for number in [3, 4] {
            assert_eq!(line(&imported, number).outcome, LineOutcome::Unmatched, "{rule}");
        }
    }
}

/// haproxy refuses the same pairs: a frontend and a backend may share a name, nothing else may.
#[test]
fn refuses_two_sections_with_one_name() {
    let readers = "frontend in\n bind :1\n default_backend b\nbackend b\n \
                   tcp-check expect string role:master\n server a h:6379\n\
                   frontend in\n bind :2\n default_backend b\nbackend b\n \
                   tcp-check expect string role:slave\n server a h:6379\n";
    let shown = refusal(readers);
    assert!(shown.contains("h.cfg:7:1: frontend in has the same name as frontend in at h.cfg:1"));
    assert!(shown.contains("h.cfg:10:1: backend b has the same name as backend b at h.cfg:4"));
    let rest = listen(" tcp-check expect string role:master\n");
    for (first, second) in
        [("listen", "listen"), ("listen", "backend"), ("frontend", "listen"), ("backend", "listen")]
    {
        let shown = refusal(&format!("{rest}{first} x\n{second} x\n"));
        assert!(shown.contains(&format!("{second} x has the same name as {first} x")), "{shown}");
    }
    for pair in ["frontend x\nbackend x\n", "backend x\nfrontend x\n", "userlist x\nbackend x\n"] {
        assert_eq!(import(&format!("{rest}{pair}")).refusals, [], "{pair}");
    }
    let defaults = "defaults d\n mode tcp\ndefaults d\n maxconn 9\n";
    let one = import(&format!("{defaults}{rest}"));
    assert_eq!(one.refusals, [], "nothing refers to them");
    let shown = refusal(&format!("{defaults}{}", rest.replace("redis\n", "redis from d\n")));
    assert!(shown.contains("h.cfg:5:1: several sections above are \"defaults d\""), "{shown}");
}

#[test]
fn refuses_servers_without_a_port_of_their_own() {
    let text = "frontend f\n bind :6385\n default_backend b\nbackend b\n \
                option redis-check\n tcp-check expect string role:master\n server a h0:0\n server b h1:+1000\n";
    let shown = refusal(text);
    assert!(shown.contains("h.cfg:7:2: h0:0 has port 0"), "{shown}");
    assert!(shown.contains("h.cfg:8:2: h1:+1000 has a port relative to"), "{shown}");
    assert!(shown.contains("`ssl verify required ca-file FILE`"), "{shown}");
    // As the remedy says.
    let with_tls = text.replace(":0\n", ":6380 ssl verify required ca-file /ca.pem\n");
    let with_tls = with_tls.replace(":+1000\n", ":6380 ssl verify required ca-file /ca.pem\n");
    assert!(service(&import(&with_tls)).contains_key("redis_tls"));
    // Sections that no Redis listener uses are not ours.
    let other = format!("{}backend other\n server a h0:0\n", listen(""));
    assert_eq!(import(&other).refusals, []);
}

#[test]
fn takes_statistics_from_an_http_backend_of_a_tcp_frontend() {
    let stats = "defaults\n mode tcp\nfrontend web\n bind :8404\n default_backend pages\n\
                 backend pages\n mode http\n stats enable\n";
    let imported = import(&format!("{stats}{}", listen("")));
    assert_eq!(table(&imported)["admin"]["listen"].to_string(), "[\"0.0.0.0:8404\"]");
    assert_eq!(line(&imported, 6).outcome, LineOutcome::Mapped);
    // A web server behind such a frontend stays in haproxy, even at the port of Redis.
    let web = stats.replace("stats enable", "server a h:6379");
    let imported = import(&format!("{web}{}", listen("")));
    assert!(line(&imported, 3).note.contains("keep it in haproxy"), "{:?}", line(&imported, 3));
    assert_eq!(services(&imported).len(), 1);
}

/// Such nodes all accept writes: none of them is a replica, and none is the only master.
#[test]
fn leaves_active_replicas_in_haproxy() {
    let text = |pattern: &str| listen(&format!(" tcp-check expect {pattern}\n"));
    let active = text("string role:active-replica");
    for options in [ImportOptions::default(), named(&["redis=m"])] {
        let imported = import_with(&active, &options);
        assert!(!imported.refusals.is_empty() && imported.toml.is_empty());
        assert!(line(&imported, 1).note.contains("KeyDB"), "{:?}", line(&imported, 1));
    }
    // A check that accepts a master as well asks for the master.
    let both = import(&text("rstring role:(master|active-replica)"));
    assert_eq!(services(&both).len(), 1);
}

/// Every remedy that is a flag is accepted.
#[test]
fn names_whose_readers_are_accepted() {
    let readers = "listen ro\n bind :2\n option redis-check\n tcp-check expect string role:slave\n server x h2:6380\n";
    let masters = listen(" tcp-check expect string role:master\n");
    let shown = refusal(&format!("{masters}{readers}"));
    assert!(shown.contains("say whose replicas they are: --name ro=mymaster"), "{shown}");
    let alone = refusal(readers);
    assert!(!alone.contains("--name") && alone.contains("the listener of its writers"), "{alone}");
}

#[test]
fn recognizes_redis_cluster() {
    let checks = [
        "tcp-check send CLUSTER\\ INFO\\r\\n\n tcp-check expect string cluster_state:ok",
        "tcp-check send info\\ cluster\\r\\n\n tcp-check expect string cluster_enabled:1",
    ];
    for check in checks {
        let cluster = format!("listen c\n bind :7000\n {check}\n server a h:7000\n");
        let shown = refusal(&cluster);
        assert!(shown.contains("only to Redis Cluster"), "{shown}");
        let beside = import(&format!("{}{cluster}", listen("")));
        assert_eq!(services(&beside).len(), 1);
        for number in 4..=8 {
            let note = &line(&beside, number).note;
            assert!(note.contains("leads to Redis Cluster"), "{number}: {note}");
        }
    }
    for without in ["string cluster_enabled:0", "! string cluster_enabled:1"] {
        let check = format!(" tcp-check send info\\ cluster\\r\\n\n tcp-check expect {without}\n");
        assert_eq!(services(&import(&listen(&check))).len(), 1, "{without}");
    }
}
