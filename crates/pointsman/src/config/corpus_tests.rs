//! The inputs with which the configuration is fuzzed, and variations of them.

use std::path::Path;

use super::load_text;

#[test]
fn reports_faults_or_prints_the_same_configuration() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/config");
    let (mut valid, mut random) = (0, fastrand::Rng::with_seed(7));
    for file in std::fs::read_dir(folder).unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        for variation in 0..60 {
            let mut bytes = input.clone();
            for _ in 0..variation % 6 {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(b'\n'..b'~');
                }
            }
            let Ok(text) = std::str::from_utf8(&bytes) else { continue };
            let loaded = load_text("h.toml", text);
            if let Ok(config) = loaded.config() {
                let printed = loaded.print();
                let again = load_text("h.toml", &printed);
                let hash = again.config().map(|it| it.hash).unwrap_or_default();
                assert_eq!(hash, config.hash, "{text}\n{printed}");
                valid += 1;
            }
        }
    }
    assert!(valid > 30, "the corpus is of no use: {valid}");
}
