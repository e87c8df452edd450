"""Names of languages: many spellings in ("eng", "en_GB", "iw"), one code out (ISO 639-1 where there is one)."""

# ISO 639-3, ISO 639-2/B, members of macrolanguages and withdrawn codes that name a language with a two-letter code.
_OTHER_CODES = """
af:afr am:amh ar:ara,arb as:asm ay:aym,ayr az:aze,azj ba:bak be:bel bg:bul bh:bih bn:ben bo:bod,tib br:bre bs:bos
ca:cat co:cos cs:ces,cze cy:cym,wel da:dan de:deu,ger dv:div dz:dzo ee:ewe el:ell,gre en:eng eo:epo es:spa
et:est,ekk eu:eus,baq fa:fas,per,pes fi:fin fj:fij fo:fao fr:fra,fre fy:fry ga:gle gd:gla gl:glg gn:grn,gug gu:guj
gv:glv ha:hau he:heb,iw hi:hin hr:hrv ht:hat hu:hun hy:hye,arm ia:ina id:ind,in ie:ile ig:ibo ik:ipk is:isl,ice
it:ita iu:iku ja:jpn jv:jav,jw ka:kat,geo kk:kaz kl:kal km:khm kn:kan ko:kor ks:kas ku:kur,kmr ky:kir la:lat lb:ltz
lg:lug ln:lin lo:lao lt:lit lv:lav,lvs mg:mlg,plt mi:mri,mao mk:mkd,mac ml:mal mn:mon,khk mr:mar ms:msa,may,zsm
mt:mlt my:mya,bur na:nau nb:nob ne:nep,npi nl:nld,dut nn:nno no:nor nr:nbl ny:nya oc:oci om:orm,gaz or:ori,ory os:oss
pa:pan pl:pol ps:pus,pbt pt:por qu:que,quy rm:roh rn:run ro:ron,rum,mo ru:rus rw:kin sa:san sd:snd sg:sag sh:hbs
si:sin sk:slk,slo sl:slv sm:smo sn:sna so:som sq:sqi,alb,als sr:srp ss:ssw st:sot su:sun sv:swe sw:swa,swh ta:tam
te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl,fil tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ug:uig uk:ukr ur:urd
uz:uzb,uzn ve:ven vi:vie vo:vol wo:wol xh:xho yi:yid,ydd,ji yo:yor za:zha zh:zho,chi,cmn zu:zul
"""
_CODE_OF = {
    other: code for code, others in (entry.split(":") for entry in _OTHER_CODES.split()) for other in others.split(",")
}


def language_code(name: str) -> str:
    """The one code of a language, whatever standard and region the name has: "deu", "de_AT" and "DE" are "de"."""
    primary = name.replace("_", "-").split("-")[0].lower()
    return _CODE_OF.get(primary, primary)


def split_languages(languages: str) -> tuple[str, str]:
    """The codes of source and target: "eng-deu" is ("en", "de"), and so is "en_GB-de"."""
    source, _, target = languages.rpartition("-")
    return language_code(source), language_code(target)
